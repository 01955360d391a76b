"""Pixels, precision, compilation and schedules of a pre-training."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def to_pixels(images: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] to float [N, 3, H, W] in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


def differences(decoded: Tensor, pixels: Tensor) -> dict[str, Tensor]:
    """How decoded images [N, 3, H, W] differ: means of l1, mse, and l1 of the image gradients."""
    edges = [functional.l1_loss(decoded.diff(dim=axis), pixels.diff(dim=axis)) for axis in (2, 3)]
    return {
        "l1": functional.l1_loss(decoded, pixels),
        "mse": functional.mse_loss(decoded, pixels),
        "edge": edges[0] + edges[1],
    }


def compiled(function: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """torch.compile where asked for; code that fails to compile runs eagerly, logged."""
    if not wanted:
        return function
    torch._dynamo.config.suppress_errors = True
    return torch.compile(function)


def autocast(tensor: Tensor) -> torch.autocast:
    """bfloat16 on the GPU; the CPU stays in float32, where bfloat16 is slower."""
    return torch.autocast("cuda", torch.bfloat16, enabled=tensor.is_cuda)


def cosine(done: float) -> float:
    """A learning rate's share of its peak: from 1 down to 0.02, over `done` in [0, 1]."""
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))
