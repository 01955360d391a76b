"""Ratios of probabilities that stay finite, and so do their gradients. Pure."""

from __future__ import annotations

from torch import Tensor

LARGEST_LOG_RATIO = 20.0  # exp: 485 million, whose square float32 still holds


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), and above LARGEST_LOG_RATIO its tangent there: the same shape.

    exp overflows from 88 on, and the gradient of what a clip or a weight of 0 then takes away is
    0 x inf = NaN. On the tangent a bad action that became far likelier keeps a gradient. Up to the
    limit, values and gradients are those of exp to the bit.
    """
    limited = log_ratio.clamp(max=LARGEST_LOG_RATIO)
    return limited.exp() * (1 + (log_ratio - limited))
