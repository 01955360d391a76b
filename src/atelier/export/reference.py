"""What an export must reproduce, and how far what was reproduced is from it.

A reference is what the trainer's own policy made of held-out prompts, with the trained tensors and
without them, in float32. It lies in the exported directory as verification/reference.safetensors:
arrays by name, prompts and settings as JSON in the header. Each family has its own
(sd3/reference.py, janus/reference.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors import SafetensorError

from atelier.errors import CheckpointError


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
        log_probs: of the log-probabilities of the same tokens, in nats, where there are tokens.
        greedy: share of the likeliest tokens that are the same, likewise.
    """

    images: Difference
    log_probs: Difference | None = None
    greedy: float | None = None


class Reference(Protocol):
    """See the module."""

    @property
    def prompts(self) -> Sequence[str]: ...

    @property
    def call(self) -> Mapping[str, float | int]:
        """Settings of the call that generates."""
        ...

    @property
    def effect(self) -> Differences:
        """How far training moved the model: trained against base."""
        ...

    def compare(self, made: Mapping[str, np.ndarray]) -> Differences:
        """How far what the clean process made is from the trainer's.

        Raises:
            CheckpointError: it made something of another shape.
        """
        ...

    def save(self, path: Path) -> None: ...


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Inside, what is wrong with the file of a reference becomes a CheckpointError."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
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
