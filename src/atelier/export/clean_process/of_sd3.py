"""A Stable Diffusion 3 pipeline by plain diffusers: images from given latents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .references import arrays_of, header_of

if TYPE_CHECKING:
    import numpy as np

CHUNK = 8  # images generated together; above 1, a batch's size does not change its images


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


def weights(pipe: Any) -> dict[str, Any]:
    """Of the transformer, all its tensors."""
    return dict(pipe.transformer.state_dict())


def adapted(pipe: Any) -> Any:
    """The module that an adapter is put on."""
    return pipe.transformer


def frozen(pipe: Any) -> dict[str, dict[str, Any]]:
    """Nothing: images show what becomes of the other parts."""
    return {}


def reproduce(pipe: Any, reference: str) -> dict[str, np.ndarray]:
    """images: of the reference's prompts from its latents, uint8 [N, H, W, 3]."""
    import numpy as np

    header, latents = header_of(reference), arrays_of(reference)["latents"]
    prompts, call = header["prompts"], header["call"]
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
