"""The images an export must reproduce: latents, prompts and settings, and what the trainer made.

Stored as verification/reference.safetensors:

    latents      float32 [N, C, h, w]   the initial noise, as the pipeline's `latents` argument
    images       uint8 [N, H, W, 3]     by the trainer's policy with the trained tensors
    base_images  uint8 [N, H, W, 3]     by the same policy before they were loaded

with the prompts and the call's settings as JSON in the header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from atelier.errors import CheckpointError


@dataclass(frozen=True)
class ImageDifference:
    """Absolute difference of two sets of images, in [0, 1]: 1/255 is one grey level."""

    max: float
    mean: float


@dataclass(frozen=True)
class Reference:
    """See the module. `call` holds num_inference_steps, guidance_scale, max_sequence_length."""

    latents: torch.Tensor
    images: np.ndarray
    base_images: np.ndarray
    prompts: list[str]
    call: Mapping[str, float | int]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {
            "latents": self.latents.float().cpu().contiguous(),
            "images": torch.from_numpy(np.ascontiguousarray(self.images)),
            "base_images": torch.from_numpy(np.ascontiguousarray(self.base_images)),
        }
        header = {"prompts": json.dumps(self.prompts), "call": json.dumps(dict(self.call))}
        save_file(tensors, path, metadata=header)

    @property
    def effect(self) -> ImageDifference:
        """How far training moved the images. Under 1/255 they cannot tell trained from base."""
        return image_difference(self.images, self.base_images)


def load_reference(path: Path) -> Reference:
    """Read a reference back.

    Raises:
        CheckpointError: no such file, or not a reference.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata()
            return Reference(
                latents=file.get_tensor("latents"),
                images=file.get_tensor("images").numpy(),
                base_images=file.get_tensor("base_images").numpy(),
                prompts=json.loads(header["prompts"]),
                call=json.loads(header["call"]),
            )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not the reference of an export: {error}") from error


def image_difference(left: np.ndarray, right: np.ndarray) -> ImageDifference:
    """Compare two uint8 arrays [N, H, W, 3].

    Raises:
        CheckpointError: their shapes differ.
    """
    if left.shape != right.shape:
        raise CheckpointError(f"images {left.shape} cannot be compared with images {right.shape}")
    difference = np.abs(left.astype(np.int16) - right.astype(np.int16)) / 255
    return ImageDifference(float(difference.max()), float(difference.mean()))
