"""A Qwen-Image pipeline whose text encoder writes, by plain diffusers, transformers and peft."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from diffusers import DiffusionPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from transformers import Qwen2_5_VLForConditionalGeneration

from .arrived import require_all
from .completions import filled, log_probs, margins, own
from .qwen_usage import embeddings, ended, paint, read, write
from .references import arrays_of, header_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Loaded:
    """What a user has.

    Attributes:
        encoder: that writes.
        whole: what peft made of it, or the same.
        pipe: the frozen parts, and the encoder.
        settings: see qwen/settings.py.
        job: what was to be loaded.
    """

    encoder: Any
    whole: Any
    pipe: Any
    settings: Mapping[str, Any]
    job: Mapping[str, Any]


def load(job: Mapping[str, Any]) -> Loaded:
    """The exported encoder, or the base's with the adapter, in the base's pipeline; in its own one
    where the export holds it."""
    merged = job["format"] == "merged"
    directory, base = job["directory"], job["base"]
    encoder = whole = _encoder(directory if merged else base, None if merged else job["dtype"])
    if not merged:
        from peft import PeftModel

        whole = PeftModel.from_pretrained(encoder, directory)
    settings = header_of(job["reference"])["settings"]
    is_whole = merged and Path(directory, "model_index.json").exists()
    pipe = DiffusionPipeline.from_pretrained(
        directory if is_whole else base,
        text_encoder=encoder.eval(),
        dtype={name: getattr(torch, dtype) for name, dtype in settings["dtypes"].items()},
        local_files_only=True,
    )
    pipe.set_progress_bar_config(disable=True)
    return Loaded(encoder, whole, pipe, settings, job)


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
    require_all(info)
    return encoder


@contextmanager
def _untrained(loaded: Loaded) -> Iterator[Any]:
    """The encoder as it was before it was trained."""
    if loaded.job["format"] == "merged":
        yield _encoder(loaded.job["base"], "float32").eval()
        return
    with loaded.whole.disable_adapter():
        yield loaded.encoder


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
    the reference's greedy ones.

    First the encoder is on the device, then what paints: together they are 75 GB.
    """
    import numpy as np

    rows, device = _rows(reference), loaded.job["device"]
    loaded.encoder.to(device)
    made = [_written(loaded, row) for row in rows]
    loaded.encoder.to("cpu")
    negatives = _negatives(loaded, rows)
    _prepare_painting(loaded)
    columns = zip(rows, made, negatives, strict=True)
    images = np.stack([_painted(loaded, row, one.pop("embeds"), no) for row, one, no in columns])
    found = {name: np.stack([one[name] for one in made]) for name in made[0]}
    if not np.isfinite(images).all() or not np.isfinite(found["log_probs"]).all():
        raise ValueError("the pipeline computes values that are not finite numbers")
    return {**found, "images": (images * 255).round().astype(np.uint8)}


def _prepare_painting(loaded: Loaded) -> None:
    """The frozen parts as their settings want them, on the device."""
    pipe, settings = loaded.pipe, loaded.settings
    pipe.text_encoder = None
    if settings["adapter"] is not None:
        file = Path(loaded.job["root"], os.path.expanduser(settings["adapter"]))
        if not file.is_file():
            raise FileNotFoundError(f"no {file}, which rollout.environment.adapter names")
        pipe.load_lora_weights(str(file))
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
    pipe.to(loaded.job["device"])


@dataclass(frozen=True)
class _Row:
    """What a reference has of one prompt."""

    prompt: str
    read: list[int]
    written: torch.Tensor
    greedy: torch.Tensor
    latents: torch.Tensor
    source: Any
    call: Mapping[str, Any]


def _rows(reference: str) -> list[_Row]:
    from PIL import Image

    header, held = header_of(reference), arrays_of(reference)
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


def _written(loaded: Loaded, row: _Row) -> dict[str, Any]:
    """All that the encoder makes of a prompt, `embeds` on the CPU."""
    encoder, tokenizer = loaded.encoder, loaded.pipe.tokenizer
    inputs = _inputs(loaded, row.prompt, row)
    if inputs["input_ids"][0].tolist() != row.read:
        raise ValueError(f"{row.prompt!r} is read as other tokens than by the trainer")
    inputs, limit = inputs.to(encoder.device), len(row.written)
    drawn, likeliest = (own(tokenizer, one.to(encoder.device)) for one in (row.written, row.greedy))
    greedy = write(encoder, tokenizer, inputs, max_new_tokens=limit, do_sample=False)
    return {
        "log_probs": filled(log_probs(encoder, inputs, drawn), limit, 0.0),
        "greedy": filled(greedy[0, :limit], limit, tokenizer.pad_token_id),
        "margins": filled(margins(encoder, tokenizer, inputs, likeliest), limit, torch.inf),
        "embeds": embeddings(encoder, inputs, _skip(loaded), ended(tokenizer, drawn[None])).cpu(),
    }


def _negatives(loaded: Loaded, rows: list[_Row]) -> list[Any]:
    """What guidance leads away from, a row each, on the CPU; None where there is none."""
    if rows[0].call["true_cfg_scale"] <= 1:
        return [None] * len(rows)
    with _untrained(loaded) as encoder:
        encoder.to(loaded.job["device"])
        inputs = [_inputs(loaded, "", row).to(encoder.device) for row in rows]
        found = [embeddings(encoder, one, _skip(loaded)).cpu() for one in inputs]
        encoder.to("cpu")
    return found


def _painted(loaded: Loaded, row: _Row, embeds: Any, negative: Any) -> np.ndarray:
    """[H, W, 3] in [0, 1]."""
    device = loaded.job["device"]
    image: np.ndarray = paint(
        loaded.pipe,
        embeds.to(device),
        None if negative is None else negative.to(device),
        latents=row.latents[None].to(device),
        output_type="np",
        **({} if row.source is None else {"image": row.source}),
        **row.call,
    )
    return image


def _inputs(loaded: Loaded, prompt: str, row: _Row) -> Any:
    """What the encoder reads; a space stands for no words."""
    settings, words = loaded.settings, prompt.strip() or " "
    text = f"{settings['before']}{settings['picture']}{words}{settings['after']}"
    return read(loaded.pipe, text, row.source, settings["seen"]["encoder"])


def _skip(loaded: Loaded) -> int:
    return len(loaded.pipe.tokenizer(loaded.settings["before"])["input_ids"])
