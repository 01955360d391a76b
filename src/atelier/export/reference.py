"""What an export must reproduce, and how far what was reproduced is from it.

A reference is what the trainer's own policy made of held-out prompts, with the trained tensors and
without them, in float32. It lies in the exported directory as verification/reference.safetensors:
arrays by name, the other fields as JSON in the header. Each family has its own
(sd3/reference.py, janus/reference.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

import numpy as np
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from atelier.errors import CheckpointError

SOURCE = "source.png"


@dataclass(frozen=True)
class Difference:
    """Absolute difference of two arrays. Of images, in [0, 1]: 1/255 is one grey level."""

    max: float
    mean: float


@dataclass(frozen=True)
class Differences:
    """How far two models are apart.

    Attributes:
        images: of what they generate.
        exact_images: whether what generates them computed in float32.
        log_probs: of the log-probabilities of the same tokens, in nats, where there are tokens.
        greedy: share of the likeliest tokens that are the same, likewise.
    """

    images: Difference
    log_probs: Difference | None = None
    greedy: float | None = None
    exact_images: bool = True


@dataclass(frozen=True)
class Reference:
    """See the module.

    Attributes:
        prompts: what the images are of.
        call: settings of the call that generates.
        images: uint8 [N, H, W, 3] by the trained policy.
        base_images: by the policy before training.
        sources: uint8 [N, H, W, 3], what they are edits of; None where nothing is edited.
    """

    prompts: list[str]
    call: Mapping[str, float | int]
    images: np.ndarray
    base_images: np.ndarray
    sources: np.ndarray | None = field(default=None, kw_only=True)

    @property
    def effect(self) -> Differences:
        """How far training moved the model: trained against base. Images under 1/255 cannot tell
        one from the other."""
        return Differences(image_difference(self.images, self.base_images))

    def compare(self, made: Mapping[str, np.ndarray]) -> Differences:
        """How far what the clean process made is from the trainer's.

        Raises:
            CheckpointError: it made something of another shape.
        """
        return Differences(image_difference(made["images"], self.images))

    def save_source(self, directory: Path) -> None:
        """Write the picture that the card's lines edit, if they edit one."""
        if self.sources is not None:
            Image.fromarray(self.sources[0]).save(directory / SOURCE)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = {one.name: getattr(self, one.name) for one in fields(self)}
        arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
        header = {name: json.dumps(value) for name, value in held.items() if name not in arrays}
        dense = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        save_file(dense, path, metadata=header)  # which ignores strides

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a reference back.

        Raises:
            CheckpointError: no such file, or not a reference.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                held = {name: json.loads(text) for name, text in (file.metadata() or {}).items()}
                held |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                # What an earlier version did not write has its default, or is missing.
                names = [one.name for one in fields(cls) if one.name in held]
                return cls(**{name: held[name] for name in names})
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: not the reference of an export: {error}") from error


def image_difference(left: np.ndarray, right: np.ndarray) -> Difference:
    """Compare two uint8 arrays [N, H, W, 3].

    Raises:
        CheckpointError: their shapes differ.
    """
    require_same_shape("images", left, right)
    difference = np.abs(left.astype(np.int16) - right.astype(np.int16)) / 255
    return Difference(float(difference.max()), float(difference.mean()))


def require_same_shape(what: str, left: np.ndarray, right: np.ndarray) -> None:
    """Raise CheckpointError unless two arrays can be compared."""
    if left.shape != right.shape:
        raise CheckpointError(f"{what} {left.shape} cannot be compared with {what} {right.shape}")
