"""The noise that an image begins with: a function of its key alone.

diffusers draws a batch from one generator, so that an image's noise depends on its place in the
batch; and the same generator object given twice moves on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atelier.policies.base import Sample
from atelier.policies.flow.draws import Draws


def noise_keys(seed: int, step: int, samples: Sequence[Sample], shared: bool) -> list[int]:
    """Of each sample's image, another in every step.

    Args:
        shared: whether the samples of a group begin with the same noise (rollout.shared_start).
    """
    draws = Draws(seed, step)
    return [draws.shared_start(one) if shared else draws.noise(one) for one in samples]


def latents(keys: Sequence[int], channels: int, height: int, width: int) -> Tensor:
    """Standard normal float32 [B, tokens, 4 channels] of latents [B, channels, height, width],
    drawn on the CPU: on every device the same."""
    shape = (channels, height, width)
    rows = [torch.randn(shape, generator=torch.Generator().manual_seed(one)) for one in keys]
    return packed(torch.stack(rows))


def packed(x: Tensor) -> Tensor:
    """Latents [B, C, H, W] as tokens [B, H/2 W/2, 4 C]: squares of 2 x 2, channels outermost."""
    squares = x.unflatten(2, (-1, 2)).unflatten(4, (-1, 2))  # [B, C, H/2, 2, W/2, 2]
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
