"""DiffusionNFT: learning from clean images alone, without a stochastic step or a log-probability.

An image is noised to a level t, and the velocity there is pulled towards what would restore it
where the image was good, and away where it was bad; both directions are measured from the velocity
of the behaviour policy, a slow copy of the trained one that sampled the image. Pure.

Source: spec flow 2.6, golden values 11 item 10.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

SMALLEST_WEIGHT = 1e-5

AdvantageUse = Literal["all", "positive_only", "negative_only", "one_only", "binary"]


def optimality(advantages: Tensor, clip: float = 5.0, use: AdvantageUse = "all") -> Tensor:
    """r in [0, 1], how good a sample is: 1/2 + A / (2 clip), A clamped to +-clip.

    Args:
        use: which advantages count, applied to the clamped ones: those above 0, those below 0, 1
            for those above 0 (one_only), their signs (binary).
    """
    clamped = advantages.clamp(-clip, clip)
    chosen = {
        "all": clamped,
        "positive_only": clamped.clamp(min=0),
        "negative_only": clamped.clamp(max=0),
        "one_only": (clamped > 0).to(clamped.dtype),
        "binary": clamped.sign(),
    }[use]
    return (chosen / clip / 2 + 0.5).clamp(0, 1)


def noised(clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
    """x_t = (1 - t) x0 + t eps; level [B] broadcasts over the latent's dimensions."""
    t = _over(level, clean)
    return (1 - t) * clean + t * noise


def nft_loss(
    velocity: Tensor,
    behaviour_velocity: Tensor,
    clean: Tensor,
    noisy: Tensor,
    level: Tensor,
    good: Tensor,
    strength: float,
    clip: float = 5.0,
) -> Tensor:
    """The contrastive loss of each sample: [B].

    velocity, behaviour_velocity (of the policy that sampled), clean x0 and noisy x_t have one shape
    [B, ...]; level t and good r (`optimality`) are [B].

    Args:
        strength: beta, how far the implicit policies lie from the behaviour policy: 1 compares the
            trained policy itself; 0.1 is for narrow rewards such as OCR.
    """
    t = _over(level, clean)
    old = behaviour_velocity.detach()
    towards = strength * velocity + (1 - strength) * old
    away = (1 + strength) * old - strength * velocity
    positive = _restored_error(noisy - t * towards, clean)
    negative = _restored_error(noisy - t * away, clean)
    return clip * (good * positive + (1 - good) * negative) / strength


def _restored_error(restored: Tensor, clean: Tensor) -> Tensor:
    """Mean of (x0_hat - x0)^2 / w with w the mean |x0_hat - x0|, detached: [B]. So large errors do
    not count more than they should, as in consistency training."""
    difference = restored - clean
    with torch.no_grad():
        weight = difference.double().abs().flatten(1).mean(1).clamp(min=SMALLEST_WEIGHT)
    return (difference**2).flatten(1).mean(1) / weight.to(difference.dtype)


def behaviour_decay(schedule: Literal["follow", "ramp", "late_ramp"], step: int) -> float:
    """eta: how much of the behaviour policy stays when it moves towards the trained one after
    training step `step` (counted as published, from 0).

    follow: none. ramp: min(0.001 step, 0.5). late_ramp (OCR): none until step 75, then
    min(0.0075 (step - 75), 0.999).
    """
    if schedule == "ramp":
        return min(0.001 * step, 0.5)
    if schedule == "late_ramp":
        return min(0.0075 * max(0, step - 75), 0.999)
    return 0.0


def _over(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1)).to(like.dtype)
