"""A DeepGen model by plain diffusers and transformers: images from given latents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from .deepgen_usage import latent_of, load_parts, paint, read, translate
from .references import arrays_of, header_of

if TYPE_CHECKING:
    import numpy as np

Parts = dict[str, Any]
LORA = "pytorch_lora_weights.safetensors"


def load(job: Mapping[str, Any]) -> Parts:
    """The parts of the merged directory itself, with other weights where there are any; or of the
    base with the adapter."""
    merged = job["format"] == "merged"
    parts = load_parts(job["directory"] if merged else job["base"], getattr(torch, job["dtype"]))
    if not merged:
        parts["transformer"].load_lora_adapter(
            job["directory"], weight_name=LORA, local_files_only=True
        )
    if job["weights"] is not None:
        _replace(parts, torch.load(job["weights"], map_location="cpu", weights_only=True))
    for name in ("transformer", "vae", "vlm"):
        parts[name].eval().to(job["device"])
    return parts


def _replace(parts: Parts, state: Mapping[str, Any]) -> None:
    """Put a file's weights of the transformer and the connector in place, by its names."""
    named = {re.sub(r"^(module\.|model\.)+", "", name): state[name] for name in state}
    own = "transformer."
    transformer = {name[len(own) :]: value for name, value in named.items() if name.startswith(own)}
    parts["transformer"].load_state_dict(transformer, assign=True)
    parts["bridge"] = {name: named[name] for name in parts["bridge"]}


def weights(parts: Parts) -> dict[str, Any]:
    """Of the transformer and the connector, by the names of published checkpoints."""
    held = parts["transformer"].state_dict()
    return {**{f"transformer.{name}": value for name, value in held.items()}, **parts["bridge"]}


def adapted(parts: Parts) -> Any:
    """The module that an adapter is put on, in one that calls it as checkpoints do."""
    return torch.nn.ModuleDict({"transformer": parts["transformer"]})


def frozen(parts: Parts) -> dict[str, dict[str, Any]]:
    """Nothing: images show what becomes of the other parts."""
    return {}


def reproduce(parts: Parts, reference: str) -> dict[str, np.ndarray]:
    """images: of the reference's prompts from its latents, uint8 [N, H, W, 3]; of its sources,
    where it edits."""
    import numpy as np
    from PIL import Image

    header, arrays = header_of(reference), arrays_of(reference)
    call, prompts = header["call"], header["prompts"]
    levels = arrays.get("sources")
    shown = [None] * len(prompts) if levels is None else [*map(Image.fromarray, levels.numpy())]
    pixels = np.stack(
        [
            _painted(parts, prompt, source, noise[None].to(parts["vae"].device), call)
            for prompt, source, noise in zip(prompts, shown, arrays["latents"], strict=True)
        ]
    )
    if not np.isfinite(pixels).all():
        raise ValueError("the model generates pixels that are not finite numbers")
    return {"images": (pixels * 255).round().astype(np.uint8)}


def _painted(
    parts: Parts, prompt: str, source: Any, noise: torch.Tensor, call: Mapping[str, Any]
) -> np.ndarray:
    guidance = call["guidance_scale"]
    found: np.ndarray = paint(
        parts,
        translate(parts, read(parts, prompt, source)),
        noise,
        translate(parts, read(parts, "", source)) if guidance > 1 else None,
        call["num_inference_steps"],
        guidance,
        None if source is None else latent_of(parts, source),
    )
    return found
