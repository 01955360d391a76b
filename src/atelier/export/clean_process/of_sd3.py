"""A Stable Diffusion 3 pipeline by plain diffusers: images from given latents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

CHUNK = 8  # images generated together; above 1, a batch's size does not change its images
ADAPTER_NAME = re.compile(r"\.(lora_[AB])\.[^.]+\.weight$")


def load(job: Mapping[str, Any]) -> Any:
    """The plain pipeline: the merged directory itself, or the base with the adapter."""
    import torch
    from diffusers import DiffusionPipeline

    source = job["directory"] if job["format"] == "merged" else job["base"]
    pipe = DiffusionPipeline.from_pretrained(
        source, dtype=getattr(torch, job["dtype"]), local_files_only=True
    )
    if job["format"] == "adapter":
        pipe.load_lora_weights(job["directory"])
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(job["device"])


def trained_part(pipe: Any, kind: str) -> tuple[dict[str, Any], list[float]]:
    """What arrived in the transformer: all its tensors (merged), or the LoRA's (adapter)."""
    state = pipe.transformer.state_dict()
    if kind == "merged":
        return dict(state), []
    lora = {
        ADAPTER_NAME.sub(r".\1.weight", name): tensor
        for name, tensor in state.items()
        if ADAPTER_NAME.search(name)
    }
    scaling = {
        float(value)
        for module in pipe.transformer.modules()
        if isinstance(getattr(module, "scaling", None), dict)
        for value in module.scaling.values()
    }
    return lora, sorted(scaling)


def reproduce(pipe: Any, reference: str) -> dict[str, np.ndarray]:
    """images: of the reference's prompts from its latents, uint8 [N, H, W, 3]."""
    import numpy as np
    from safetensors import safe_open

    with safe_open(reference, framework="pt") as file:
        latents = file.get_tensor("latents")
        metadata = file.metadata()
    prompts, call = json.loads(metadata["prompts"]), json.loads(metadata["call"])
    height, width = (side * pipe.vae_scale_factor for side in latents.shape[-2:])
    images = []
    for start in range(0, len(prompts), CHUNK):
        part = slice(start, start + CHUNK)
        output = pipe(
            prompt=prompts[part],
            latents=latents[part].to(pipe.device),
            height=height,
            width=width,
            output_type="np",
            **call,
        )
        images.append(output.images)
    pixels = np.concatenate(images)
    if not np.isfinite(pixels).all():
        raise ValueError("the pipeline generates pixels that are not finite numbers")
    return {"images": (pixels * 255).round().astype(np.uint8)}
