"""The clipped policy-gradient loss and what is worth watching in it. Pure.

Source: spec flow 3.2. Clip ranges may differ below and above 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyLoss:
    """loss [B, A], differentiable; the rest are detached [B, A]: log-ratio and clip flags."""

    loss: Tensor
    log_ratio: Tensor
    clipped_above: Tensor
    clipped_below: Tensor


def clipped_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = exp(log_prob - old_log_prob).

    log_prob, old_log_prob [B, A actions]; advantages [B, 1] or [B, A], already clamped.
    The clip flags say where the ratio is out of range, whatever the sign of the advantage.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    return PolicyLoss(
        loss=loss,
        log_ratio=log_ratio.detach(),
        clipped_above=(ratio > 1 + clip_high).detach(),
        clipped_below=(ratio < 1 - clip_low).detach(),
    )
