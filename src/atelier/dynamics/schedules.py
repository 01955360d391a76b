"""Noise levels of a rollout: N + 1 sigmas from 1 to 0, in float64. Pure.

Shifts move levels towards noise, where more of an image is decided the larger it is. The model is
given 1000 sigma as it is; MixGRPO and DanceGRPO truncate that to an integer.

Source: MM-GRPO (SD3, FLUX, Qwen-Image, MixGRPO, compressed tails), DeepGen-RL (levels
to train at).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LEVELS = 1000  # that a diffusers scheduler is configured with; what a model calls sigma = 1
SMALLEST = 1 / LEVELS  # the lowest of them


def shifted(sigma: float, shift: float) -> float:
    """s sigma / (1 + (s - 1) sigma), in a form that is exactly 1 at 1 and 0 at 0.

    Stochastic steps ask whether a level is 1: next to it their noise would have no bound.
    """
    return sigma / (sigma + (1 - sigma) / shift)


def unshifted(sigma: float, shift: float) -> float:
    """The inverse of `shifted`."""
    return sigma / (shift - (shift - 1) * sigma)


def training_level(drawn: float, shift: float) -> float:
    """The level that a number drawn evenly from [0, 1) falls on: of the LEVELS from 1 (for 0) down
    to 1 / LEVELS, shifted."""
    return shifted((LEVELS - math.floor(LEVELS * drawn)) / LEVELS, shift)


def linear_shift(num_steps: int, shift: float) -> list[float]:
    """The shift of evenly spaced levels: MixGRPO and DanceGRPO use 3 (images) and 5 (video)."""
    return [shifted(float(t), shift) for t in np.linspace(1, 0, num_steps + 1)]


def sd3(num_steps: int, shift: float = 3.0) -> list[float]:
    """What diffusers' FlowMatchEulerDiscreteScheduler makes of a static shift.

    It shifts twice: the lowest level is a shifted one already, so the last step is tiny.
    """
    levels = np.linspace(1, shifted(SMALLEST, shift), num_steps)
    return [*(shifted(float(level), shift) for level in levels), 0.0]


def exponential_shift(num_steps: int, mu: float, terminal: float | None = None) -> list[float]:
    """e^mu / (e^mu + 1 / sigma - 1) on levels 1 ... 1/N: FLUX, and Qwen-Image with a `terminal`.

    That is `shifted` by e^mu.

    Args:
        mu: `resolution_mu`.
        terminal: the levels are stretched so that this is the last before 0.
    """
    levels = np.linspace(1, 1 / num_steps, num_steps)
    sigmas = [shifted(float(level), math.exp(mu)) for level in levels]
    if terminal is not None:
        factor = (1 - terminal) / (1 - sigmas[-1])
        sigmas = [1 - (1 - sigma) * factor for sigma in sigmas]
    return [*sigmas, 0.0]


def resolution_mu(
    tokens: int,
    base_tokens: int = 256,
    max_tokens: int = 4096,
    base_shift: float = 0.5,
    max_shift: float = 1.15,
) -> float:
    """mu of an image of so many tokens, linear between two anchors (FLUX's are the defaults)."""
    slope = (max_shift - base_shift) / (max_tokens - base_tokens)
    return base_shift + slope * (tokens - base_tokens)


def compressed(sigmas: Sequence[float], last: int, ratio: float, shift: float) -> list[float]:
    """The schedule with everything after step `last` replaced by fewer steps (MixGRPO-Flash).

    Args:
        last: the last step that is kept: a window's last.
        ratio: of the levels that are left, how many remain (`tail_levels`).
        shift: of the schedule; the new levels are evenly spaced before it.
    """
    count = tail_levels(len(sigmas) - 1, last, ratio)
    levels = np.linspace(unshifted(sigmas[last + 1], shift), 0, count)
    return [*sigmas[: last + 2], *(shifted(float(level), shift) for level in levels[1:])]


def tail_levels(num_steps: int, last: int, ratio: float) -> int:
    """Levels of a compressed tail, the first of which is where step `last` ends.

    Below 2 nothing would take the image to sigma 0: it would stay noisy (the original allows it).
    """
    return max(int((num_steps - last) * ratio), 2)
