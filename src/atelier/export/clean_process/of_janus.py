"""A Janus model by plain transformers (and peft): how likely given image tokens are, what they
show, and which tokens it draws itself without chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .arrived import require_all
from .references import arrays_of, header_of

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True)
class Loaded:
    """`whole` is what was loaded: the model itself, or what peft made of it."""

    model: Any
    processor: Any
    whole: Any


def load(job: Mapping[str, Any]) -> Loaded:
    """The merged directory as it loads without any setting, or the base with the adapter."""
    import torch
    from transformers import JanusForConditionalGeneration, JanusProcessor

    merged = job["format"] == "merged"
    source = job["directory"] if merged else job["base"]
    dtype = {} if merged else {"dtype": getattr(torch, job["dtype"])}
    model, info = JanusForConditionalGeneration.from_pretrained(
        source, local_files_only=True, output_loading_info=True, **dtype
    )
    require_all(info)
    whole = model
    if not merged:
        from peft import PeftModel

        whole = PeftModel.from_pretrained(model, job["directory"])
    processor = JanusProcessor.from_pretrained(source, local_files_only=True)
    whole.to(job["device"]).eval()
    return Loaded(model, processor, whole)


def weights(loaded: Loaded) -> dict[str, Any]:
    """All tensors of the model."""
    return dict(loaded.model.state_dict())


def adapted(loaded: Loaded) -> Any:
    """The module that an adapter is put on."""
    return loaded.whole


def frozen(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """Nothing: `weights` are all there are."""
    return {}


def reproduce(loaded: Loaded, reference: str) -> dict[str, np.ndarray]:
    """log_probs [N, T] of the reference's codes, the images they show, greedy tokens [N, T] by
    `generate`, and margins [N, T] between the two likeliest tokens after the reference's greedy
    ones."""
    import numpy as np
    import torch

    header, held = header_of(reference), arrays_of(reference)
    codes, greedy = held["codes"], held["greedy"]
    prompts, scale = header["prompts"], header["call"]["guidance_scale"]
    device = loaded.model.device
    log_probs, margins = [], []
    for prompt, read, drawn, likeliest in zip(
        prompts, header["tokens"], codes.to(device), greedy.to(device), strict=True
    ):
        inputs = _inputs(loaded, [prompt])["input_ids"]
        if inputs[0].tolist() != read:
            raise ValueError(f"the processor reads {prompt!r} as other tokens than the trainer did")
        # Guided logits by the scale: those that training takes log-probs of.
        guided = _guided(loaded, inputs, drawn, scale) / scale
        log_probs.append(guided.log_softmax(-1).gather(-1, drawn[:, None])[:, 0])
        two = _guided(loaded, inputs, likeliest, scale).topk(2).values
        margins.append(two[:, 0] - two[:, 1])
    tokens = loaded.model.generate(
        **_inputs(loaded, prompts),
        generation_mode="image",
        guidance_scale=scale,
        do_sample=False,
    )
    return {
        "log_probs": torch.stack(log_probs).cpu().numpy(),
        "images": np.concatenate([_image(loaded, one[None]) for one in codes.to(device)]),
        "greedy": tokens.cpu().numpy(),
        "margins": torch.stack(margins).cpu().numpy(),
    }


def _inputs(loaded: Loaded, prompts: list[str]) -> Any:
    """Token ids and mask, padded on the left; the processor appends what begins an image."""
    begin = loaded.processor.tokenizer.bos_token
    inputs = loaded.processor(
        text=[f"{begin}<|User|>: {one.strip()}\n\n<|Assistant|>:" for one in prompts],
        generation_mode="image",
        add_special_tokens=False,
        padding=True,
        return_tensors="pt",
    )
    return inputs.to(loaded.model.device)


def _guided(loaded: Loaded, prompt: Any, drawn: Any, scale: float) -> torch.Tensor:
    """Logits [T, V] with guidance, float32, of every image token after the ones before it.

    The unconditional row is the prompt with padding for its words, all of it attended.

    Args:
        prompt: token ids [1, L], no padding.
        drawn: image tokens [T].
    """
    import torch

    model, inner = loaded.model, loaded.model.model
    nothing = prompt.clone()
    nothing[:, 1:-1] = loaded.processor.tokenizer.pad_token_id
    words = model.get_input_embeddings()(torch.cat([prompt, nothing]))
    image = model.prepare_embeddings_for_image_generation(drawn[None, :-1]).expand(2, -1, -1)
    embeddings = torch.cat([words, image.to(words.dtype)], dim=1)
    hidden = inner.language_model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
    with_prompt, without = inner.generation_head(hidden[:, -len(drawn) :]).float()
    return without + scale * (with_prompt - without)


def _image(loaded: Loaded, codes: Any) -> np.ndarray:
    """uint8 [1, H, W, 3] of codes [1, T]; grey levels are cut off, not rounded, as published."""
    import torch

    pixels = loaded.model.decode_image_tokens(codes).float()
    if not torch.isfinite(pixels).all():
        raise ValueError("the model decodes to pixels that are not finite numbers")
    levels = ((pixels + 1) / 2 * 255).clamp(0, 255).to(torch.uint8)
    array: np.ndarray = levels.cpu().numpy()
    return array
