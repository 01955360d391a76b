"""A Qwen-Image pipeline whose text encoder writes, by plain diffusers and transformers (and peft).

`read`, `write`, `embeddings` and `paint` stand in the card of every export, word for word: what is
proven here is what a user runs. So they have no annotations, and only what the card imports, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from diffusers import DiffusionPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from transformers import GenerationConfig, Qwen2_5_VLForConditionalGeneration

if TYPE_CHECKING:
    import numpy as np

END = "<|im_end|>"

# What a user runs ---------------------------------------------------------------------------------


def read(pipe, text, source=None, area=384 * 384):
    """A prompt in tokens; an image that it edits, as so many pixels."""
    if source is None:
        return pipe.tokenizer(text, return_tensors="pt").to(pipe.device)
    width, height = edit_plus.calculate_dimensions(area, source.width / source.height)
    seen = pipe.image_processor.resize(source, height, width)
    return pipe.processor(text=[text], images=[seen], return_tensors="pt").to(pipe.device)


def write(encoder, tokenizer, inputs, **how):
    """The tokens of a completion [1, T], with the mark that ends it and no other."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    without_words = range(len(tokenizer), encoder.lm_head.out_features)
    never = {*tokenizer.all_special_ids, *without_words} - {end}
    encoder.generation_config = GenerationConfig()  # the file's would draw otherwise
    whole = encoder.generate(
        **inputs,
        suppress_tokens=sorted(never),
        eos_token_id=end,
        pad_token_id=tokenizer.pad_token_id,
        **how,
    )
    words = whole[:, inputs["input_ids"].shape[1] :]
    return words if words[0, -1] == end else torch.nn.functional.pad(words, (0, 1), value=end)


def embeddings(encoder, inputs, skip, completion=None):
    """What the transformer paints from [1, L, D]: all hidden states but the first ones."""
    inputs = dict(inputs)
    if completion is not None:
        follows = {"input_ids": completion, "attention_mask": torch.ones_like(completion)}
        if "mm_token_type_ids" in inputs:
            follows["mm_token_type_ids"] = torch.zeros_like(completion)
        inputs |= {name: torch.cat([inputs[name], more], 1) for name, more in follows.items()}
    with torch.no_grad():
        return encoder.model(**inputs, use_cache=False).last_hidden_state[:, skip:]


def paint(pipe, embeds, negative=None, **how):
    """An image of embeddings, led away from the negative ones if there are any."""
    for name, one in (("prompt_embeds", embeds), ("negative_prompt_embeds", negative)):
        if one is not None:
            how[name] = one.to(pipe.transformer.dtype)
            how[f"{name}_mask"] = torch.ones(one.shape[:2], dtype=torch.bool, device=one.device)
    return pipe(max_sequence_length=1024, **how).images[0]


# The same, beside what the trainer made -----------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """What a user has.

    Attributes:
        encoder: that writes.
        whole: what peft made of it, or the same.
        pipe: the frozen parts, and the encoder.
        untrained: (function of an encoder) -> what it gives for the encoder before training.
        settings: see qwen/settings.py.
        device: to compute on.
        root: what paths in `settings` are relative to.
    """

    encoder: Any
    whole: Any
    pipe: Any
    untrained: Callable[[Callable[[Any], Any]], Any]
    settings: Mapping[str, Any]
    device: str
    root: str


def load(job: Mapping[str, Any]) -> Loaded:
    """The exported encoder, or the base's with the adapter, in the base's pipeline; in its own one
    where the export holds it."""
    merged = job["format"] == "merged"
    directory, base = job["directory"], job["base"]
    encoder = whole = _encoder(directory if merged else base, None if merged else job["dtype"])
    if not merged:
        from peft import PeftModel

        whole = PeftModel.from_pretrained(encoder, directory)
    settings = _header(job["reference"])["settings"]
    is_whole = merged and Path(directory, "model_index.json").exists()
    pipe = DiffusionPipeline.from_pretrained(
        directory if is_whole else base,
        text_encoder=encoder.eval(),
        dtype={name: getattr(torch, dtype) for name, dtype in settings["dtypes"].items()},
        local_files_only=True,
    )
    pipe.set_progress_bar_config(disable=True)

    def untrained(function: Callable[[Any], Any]) -> Any:
        if merged:
            return function(_encoder(base, "float32").eval().to(encoder.device))
        with whole.disable_adapter():
            return function(encoder)

    return Loaded(encoder, whole, pipe, untrained, settings, job["device"], job["root"])


def _encoder(directory: str, dtype: str | None) -> Any:
    """As it loads without any setting, or in a dtype."""
    file = Path(directory, "text_encoder", "config.json")
    if not file.is_file():  # transformers would make a model of its own size without a word
        raise FileNotFoundError(f"no {file}")
    how = {} if dtype is None else {"dtype": getattr(torch, dtype)}
    encoder, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        directory,
        subfolder="text_encoder",
        local_files_only=True,
        output_loading_info=True,
        **how,
    )
    for problem in ("missing_keys", "unexpected_keys"):
        if names := sorted(info[problem]):
            raise ValueError(f"{len(names)} {problem}, such as {names[0]}")
    return encoder


def weights(loaded: Loaded) -> dict[str, Any]:
    """Of the encoder, all its tensors."""
    return dict(loaded.encoder.state_dict())


def adapted(loaded: Loaded) -> Any:
    """The module that an adapter is put on."""
    return loaded.whole


def frozen(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """What paints, before a LoRA of its own is merged into it."""
    parts = ("transformer", "vae")
    return {name: dict(getattr(loaded.pipe, name).state_dict()) for name in parts}


def reproduce(loaded: Loaded, reference: str) -> dict[str, np.ndarray]:
    """log_probs [N, T] of the reference's completions, the images that are painted after them,
    greedy tokens [N, T] by `generate`, and margins [N, T] between the two likeliest tokens after
    the reference's greedy ones."""
    import numpy as np

    _prepare(loaded)
    made = [_reproduced(loaded, row) for row in _rows(reference)]
    found = {name: np.stack([one[name] for one in made]) for name in made[0]}
    if not all(np.isfinite(found[name]).all() for name in ("images", "log_probs")):
        raise ValueError("the pipeline computes values that are not finite numbers")
    return {**found, "images": (found["images"] * 255).round().astype(np.uint8)}


def _prepare(loaded: Loaded) -> None:
    """The pipeline as its settings want it, on its device."""
    pipe, settings = loaded.pipe, loaded.settings
    if settings["adapter"] is not None:
        pipe.load_lora_weights(str(Path(loaded.root, settings["adapter"]).expanduser()))
        pipe.fuse_lora()
        pipe.unload_lora_weights()
    pipe.scheduler = type(pipe.scheduler).from_config(
        {**pipe.scheduler.config, **settings["scheduler"]}
    )
    for name, value in settings["vae"].items():
        setattr(pipe.vae, name, value)
    seen = settings["seen"]
    edit_plus.CONDITION_IMAGE_SIZE = seen["encoder"]
    edit_plus.VAE_IMAGE_SIZE = seen["transformer"]
    pipe.to(loaded.device)


@dataclass(frozen=True)
class _Row:
    """What a reference has of one prompt; tokens without padding."""

    prompt: str
    read: list[int]
    written: torch.Tensor
    greedy: torch.Tensor
    latents: torch.Tensor
    source: Any
    call: Mapping[str, Any]


def _rows(reference: str) -> list[_Row]:
    from PIL import Image
    from safetensors import safe_open

    header = _header(reference)
    with safe_open(reference, framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return [
        _Row(
            prompt,
            header["read"][index],
            held["written"][index],
            held["greedy"][index],
            held["latents"][index],
            Image.fromarray(held["sources"][index].numpy()) if "sources" in held else None,
            header["call"],
        )
        for index, prompt in enumerate(header["prompts"])
    ]


def _reproduced(loaded: Loaded, row: _Row) -> dict[str, Any]:
    import numpy as np

    pipe, encoder, settings = loaded.pipe, loaded.encoder, loaded.settings
    area, skip = settings["seen"]["encoder"], _length(loaded, settings["before"])
    inputs = read(pipe, _text(settings, row.prompt), row.source, area)
    if inputs["input_ids"][0].tolist() != row.read:
        raise ValueError(f"{row.prompt!r} is read as other tokens than by the trainer")
    limit, device = len(row.written), encoder.device
    drawn, likeliest = (_own(pipe, one).to(device) for one in (row.written, row.greedy))
    greedy = write(encoder, pipe.tokenizer, inputs, max_new_tokens=limit, do_sample=False)
    negative = None
    if row.call["true_cfg_scale"] > 1:
        nothing = read(pipe, _text(settings, ""), row.source, area)
        negative = loaded.untrained(lambda untrained: embeddings(untrained, nothing, skip))
    image = paint(
        pipe,
        embeddings(encoder, inputs, skip, _ended(pipe, drawn)[None]),
        negative,
        latents=row.latents[None].to(device),
        output_type="np",
        **({} if row.source is None else {"image": row.source}),
        **row.call,
    )
    return {
        "images": np.asarray(image),
        "log_probs": _filled(_log_probs(encoder, inputs, drawn), limit, 0.0),
        "greedy": _filled(greedy[0, :limit], limit, pipe.tokenizer.pad_token_id),
        "margins": _filled(_margins(loaded, inputs, likeliest), limit, torch.inf),
    }


def _text(settings: Mapping[str, Any], prompt: str) -> str:
    """What the encoder reads; a space stands for no words."""
    words = prompt.strip() or " "
    return f"{settings['before']}{settings['picture']}{words}{settings['after']}"


def _length(loaded: Loaded, text: str) -> int:
    return len(loaded.pipe.tokenizer(text)["input_ids"])


def _own(pipe: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Tokens [T] up to the one that ends them."""
    ends = (tokens == pipe.tokenizer.convert_tokens_to_ids(END)).nonzero()
    return tokens[: int(ends[0]) + 1] if len(ends) else tokens


def _ended(pipe: Any, tokens: torch.Tensor) -> torch.Tensor:
    """A completion that was cut off ends for the painter as one that was not."""
    end = pipe.tokenizer.convert_tokens_to_ids(END)
    return tokens if tokens[-1] == end else torch.nn.functional.pad(tokens, (0, 1), value=end)


def _logits(encoder: Any, inputs: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Of every one of tokens [T] after the ones before it, float32 [T, V]."""
    hidden = embeddings(encoder, inputs, inputs["input_ids"].shape[1] - 1, tokens[None, :-1])
    return encoder.lm_head(hidden)[0].float()


def _log_probs(encoder: Any, inputs: Any, tokens: torch.Tensor) -> torch.Tensor:
    return _logits(encoder, inputs, tokens).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def _margins(loaded: Loaded, inputs: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Between the two likeliest ones that may be drawn."""
    tokenizer = loaded.pipe.tokenizer
    logits = _logits(loaded.encoder, inputs, tokens)[:, : len(tokenizer)]
    marks = set(tokenizer.all_special_ids) - {tokenizer.convert_tokens_to_ids(END)}
    logits[:, sorted(marks)] = -torch.inf
    two = logits.topk(2).values
    return two[:, 0] - two[:, 1]


def _filled(values: torch.Tensor, length: int, value: float) -> np.ndarray:
    filled = torch.nn.functional.pad(values, (0, length - len(values)), value=value)
    array: np.ndarray = filled.cpu().numpy()
    return array


def _header(reference: str) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(reference, framework="pt") as file:
        return {name: json.loads(text) for name, text in file.metadata().items()}
