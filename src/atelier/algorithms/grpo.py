"""GRPO: group-relative advantages, the clipped loss, and KL to the reference.

The same composition serves flow policies (an action is a denoising transition: Flow-GRPO and its
windowed Fast form) and token policies (an action is a token): what differs lies in the policy.
Paper: Flow-GRPO; spec flow 3.1-3.3. Deviations: groups are integers, not decoded prompts; nothing
is dropped per rank, samples without a score get weight 0 and the rest is weighted by the global
count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from atelier.algorithms.advantages import group_advantages
from atelier.algorithms.kl import KL_FORMS, Statistics
from atelier.algorithms.policy_loss import clipped_policy_loss
from atelier.config.log_probs import clip_ranges
from atelier.config.schema import AlgorithmConfig, RunConfig


class Replayed(Protocol):
    """What a policy's replay must offer a loss."""

    @property
    def log_prob(self) -> Tensor: ...  # [B, A]

    @property
    def statistics(self) -> Statistics: ...

    @property
    def weight(self) -> Tensor | None: ...  # [B, A]


@dataclass(frozen=True)
class LossTerms:
    """loss [B, A] is differentiated after weighting; metrics are detached [B, A]."""

    loss: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class Grpo:
    """The algorithm of a run.

    Attributes:
        clip_range: how far the ratio may be below and above 1.
    """

    config: AlgorithmConfig
    clip_range: tuple[float, float]

    @classmethod
    def of(cls, config: RunConfig) -> Grpo:
        return cls(config.algorithm, clip_ranges(config))

    @property
    def needs_reference(self) -> bool:
        return self.config.beta > 0

    def advantages(self, rewards: Tensor, group_ids: Tensor, valid: Tensor) -> Tensor:
        """Advantages [N] of the whole step's samples, clamped to +-advantage_clip."""
        advantages = group_advantages(rewards, group_ids, valid, self.config.advantage_std)
        return advantages.clamp(-self.config.advantage_clip, self.config.advantage_clip)

    def loss(self, replay: Replayed, old_log_prob: Tensor, advantages: Tensor) -> LossTerms:
        """Loss of replayed actions. old_log_prob [B, A]; advantages [B]."""
        config = self.config
        signed = advantages[:, None]
        policy = clipped_policy_loss(replay.log_prob, old_log_prob, signed, *self.clip_range)
        metrics = {
            "loss/policy": policy.loss.detach(),
            "log_ratio": policy.log_ratio,
            "clip/above": policy.clipped_above.float(),
            "clip/below": policy.clipped_below.float(),
            # The clip acts only where it lowers the objective: above 1 for a positive advantage,
            # below 1 for a negative one. These two are what learning really lost.
            "clip/positive": (policy.clipped_above & (signed > 0)).float(),
            "clip/negative": (policy.clipped_below & (signed < 0)).float(),
        }
        loss = policy.loss if replay.weight is None else policy.loss * replay.weight
        if self.needs_reference:
            kl = KL_FORMS[config.kl](replay.statistics)
            metrics["kl"] = kl.detach()
            loss = loss + config.beta * kl
        return LossTerms(loss, metrics)


def ratio_gap(log_prob: Tensor, old_log_prob: Tensor) -> dict[str, float]:
    """|ratio - 1| of a replayed rollout: mean, 99th percentile and maximum."""
    gap = ((log_prob - old_log_prob).double().exp() - 1).abs().flatten()
    return {
        "mean": float(gap.mean()),
        "p99": float(torch.quantile(gap, 0.99)),
        "max": float(gap.max()),
    }


ALGORITHMS = {"flow_grpo": Grpo.of}
