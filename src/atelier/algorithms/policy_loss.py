"""Policy-gradient losses of a ratio, and what in them is worth watching. Pure.

All are losses [B, A] of log_prob and old_log_prob [B, A actions] and of advantages [B, 1] or
[B, A], already clamped; r = exp(log_prob - old_log_prob), finite however far apart they are (see
ratio). They have the same gradient at r = 1, and differ in what is left of it elsewhere. Source:
MM-GRPO, the Qwen vision GRPO guide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.algorithms.ratio import ratio_of

# VESPO's published shape of a weight: its power and its rate, for advantages from 0 up and below.
VESPO_POWER = (2.0, 3.0)
VESPO_RATE = (3.0, 2.0)
VESPO_LOG_RANGE = (math.log(1e-8), 20.0)  # of a sequence's ratio


@dataclass(frozen=True)
class PolicyLoss:
    """loss [B, A], differentiable; the rest are detached [B, A]: log-ratio, where the ratio is
    outside the clip range, and where the clip has left no gradient."""

    loss: Tensor
    log_ratio: Tensor
    clipped_above: Tensor
    clipped_below: Tensor
    cut: Tensor


def of_sequences(log_prob: Tensor, trained: Tensor) -> Tensor:
    """The mean over each sequence's trained actions, for all of its actions: [B, A].

    Ratios of such log-probs are GSPO's: geometric means. Every loss here is then the sequence's, in
    the place of each of its tokens.

    Args:
        trained: [B, A], 1 or 0. A sequence without any has mean 0.
    """
    own = torch.where(trained > 0, log_prob, 0.0).sum(1, keepdim=True)
    return (own / trained.sum(1, keepdim=True).clamp(min=1)).expand_as(log_prob)


def clipped_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    delta: float | None = None,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); with delta, the first r is at most delta.

    The clip flags say where the ratio is out of range, whatever the sign of the advantage. Without
    delta, nothing bounds the loss of an action that became likelier though it was a bad one.
    """
    log_ratio = log_prob - old_log_prob
    ratio = ratio_of(log_ratio)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    loss = torch.maximum(-advantages * bounded, -advantages * clipped)
    above, below = ratio > 1 + clip_high, ratio < 1 - clip_low
    worse = below if delta is None else below | (ratio > delta)
    return PolicyLoss(
        loss=loss,
        log_ratio=log_ratio.detach(),
        clipped_above=above.detach(),
        clipped_below=below.detach(),
        cut=((above & (advantages > 0)) | (worse & (advantages < 0))).detach(),
    )


def cispo_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip_high: float
) -> PolicyLoss:
    """-A min(r, 1 + clip_high) log_prob, the ratio a constant: no token loses its gradient."""
    log_ratio = (log_prob - old_log_prob).detach()
    cap = 1 + clip_high
    ratio = ratio_of(log_ratio)
    loss = -advantages * ratio.clamp(max=cap) * log_prob
    return _uncut(loss, log_ratio, ratio > cap)


def sapo_policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    temperature_positive: float = 1.0,
    temperature_negative: float = 1.05,
) -> PolicyLoss:
    """-A sigmoid(tau (r - 1)) 4 / tau, with a tau for each sign of the advantage."""
    log_ratio = log_prob - old_log_prob
    tau = torch.where(advantages > 0, temperature_positive, temperature_negative)
    gate = torch.sigmoid(tau * (ratio_of(log_ratio) - 1)) * 4 / tau
    return _uncut(-advantages * gate, log_ratio)


def vespo_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, trained: Tensor
) -> PolicyLoss:
    """-A phi(w) log_prob, w the ratio of a whole sequence: phi = w^k exp(lambda (1 - w)), constant.

    Args:
        trained: [B, A], 1 or 0: the sequence's actions, whose ratios make w.
    """
    log_ratio = (log_prob - old_log_prob).detach()
    whole = torch.where(trained > 0, log_ratio, 0.0).sum(1, keepdim=True).clamp(*VESPO_LOG_RANGE)
    good = advantages >= 0
    power, rate = torch.where(good, *VESPO_POWER), torch.where(good, *VESPO_RATE)
    weight = (power * whole + rate * (1 - whole.exp())).exp()
    return _uncut(-advantages * weight * log_prob, log_ratio)


def _uncut(loss: Tensor, log_ratio: Tensor, above: Tensor | None = None) -> PolicyLoss:
    """Of a loss that no clip leaves without a gradient."""
    nowhere = torch.zeros_like(log_ratio, dtype=torch.bool)
    over = nowhere if above is None else above
    return PolicyLoss(loss, log_ratio.detach(), over, nowhere, nowhere)
