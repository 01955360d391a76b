"""Reload exported directories the way a user does, and generate images from given latents.

This file is run as a script by a fresh interpreter: it imports nothing of atelier, so what it
proves holds for anybody who has only torch, diffusers and transformers.

    python -I clean_process.py jobs.json outcomes.json

jobs.json is a list of {"format": "adapter" | "merged", "directory", "base", "reference", "dtype",
"device", "images"}; one outcome a job is written: {"error": text or null, "tensors", "digest",
"scaling"}, and the images as uint8 [N, H, W, 3] to the .npy file `images` names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

CHUNK = 8  # images generated together; above 1, a batch's size does not change its images
ADAPTER_NAME = re.compile(r"\.(lora_[AB])\.[^.]+\.weight$")


def tensor_line(name: str, tensor: torch.Tensor) -> str:
    """Name, dtype, shape and sha256 of the bytes of one tensor."""
    import torch

    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(data).hexdigest()
    return f"{name} {tensor.dtype} {tuple(tensor.shape)} {digest}"


def lines_digest(lines: Iterable[str]) -> str:
    """sha256 of the lines in alphabetical order: tensors may come in any order, or by shards."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """One sha256 for named tensors, equal only if names, dtypes, shapes and bytes are."""
    return lines_digest(tensor_line(name, tensor) for name, tensor in tensors.items())


def _load(job: Mapping[str, Any]) -> Any:
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


def _trained_part(pipe: Any, kind: str) -> dict[str, Any]:
    """What arrived in the transformer: all its tensors (merged), or the LoRA's (adapter)."""
    state = pipe.transformer.state_dict()
    if kind == "merged":
        return {"tensors": len(state), "digest": tensors_digest(state), "scaling": []}
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
    return {"tensors": len(lora), "digest": tensors_digest(lora), "scaling": sorted(scaling)}


def _images(pipe: Any, reference: str) -> np.ndarray:
    """Images of the reference's prompts from its latents, uint8 [N, H, W, 3]."""
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
    return (pixels * 255).round().astype(np.uint8)


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch

    torch.backends.cudnn.allow_tf32 = False  # fp32 is compared to 1/255: TF32 would be noise
    pipe = _load(job)
    outcome = _trained_part(pipe, job["format"])
    with torch.no_grad():
        np.save(job["images"], _images(pipe, job["reference"]))
    return {"error": None, **outcome}


def main(jobs_file: str, outcomes_file: str) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # before the first import of the hub's client
    with open(jobs_file, encoding="utf-8") as file:
        jobs = json.load(file)
    outcomes = []
    for job in jobs:
        try:
            outcomes.append(_run(job))
        except Exception as error:  # whatever loading raises is this job's result, not the end
            traceback.print_exc()
            outcomes.append({"error": f"{type(error).__name__}: {error}"})
    with open(outcomes_file, "w", encoding="utf-8") as file:
        json.dump(outcomes, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
