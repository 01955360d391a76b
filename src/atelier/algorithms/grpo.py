"""GRPO: group-relative advantages, the clipped loss, and KL to the reference.

The same composition serves flow policies (an action is a denoising transition: Flow-GRPO and its
windowed Fast form) and token policies (an action is a token): what differs lies in the policy.
Paper: Flow-GRPO; spec flow 3.1-3.3. Deviations: groups are integers, not decoded prompts; nothing
is dropped per rank, samples without a score get weight 0 and the rest is weighted by the global
count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from atelier.algorithms.advantages import (
    each_reward_advantages,
    extremes,
    group_advantages,
    whitened,
)
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


class Scored(Protocol):
    """The rewards of a step's N samples, in the order of their indices."""

    @property
    def total(self) -> Tensor: ...  # [N], weighted sum

    @property
    def values(self) -> Mapping[str, Tensor]: ...  # [N] each reward, NaN where missing

    @property
    def group_ids(self) -> Tensor: ...  # [N]

    @property
    def valid(self) -> Tensor: ...  # [N]


@dataclass(frozen=True)
class Advantages:
    """values [N, A], or [N, 1] where all actions share them; kept [N]: who is trained on."""

    values: Tensor
    kept: Tensor

    def of(self, rows: Tensor, actions: slice) -> Tensor:
        """Those of some samples' actions: [B, n] or [B, 1]."""
        values = self.values[rows]
        return values if values.shape[1] == 1 else values[:, actions]


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
        reward_weights: by name, for advantages that are made of each reward on its own.
    """

    config: AlgorithmConfig
    clip_range: tuple[float, float]
    reward_weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, config: RunConfig) -> Grpo:
        weights = {name: section.weight for name, section in config.rewards.sections().items()}
        return cls(config.algorithm, clip_ranges(config), weights)

    @property
    def needs_reference(self) -> bool:
        return self.config.beta > 0

    @property
    def kl_in_loss(self) -> bool:
        return self.needs_reference and self.config.kl_placement == "loss"

    @property
    def kl_in_reward(self) -> bool:
        return self.needs_reference and self.config.kl_placement == "reward"

    def kl(self, replay: Replayed) -> Tensor:
        """Distance of replayed actions to the reference: [B, A]."""
        return KL_FORMS[self.config.kl](replay.statistics)

    def advantages(self, scored: Scored, distances: Tensor | None = None) -> Advantages:
        """Advantages of the whole step's samples, clamped to +-advantage_clip.

        Args:
            distances: [N, A] where beta x KL of an action is taken off its reward; every action
                is then compared with the same action of its group.
        """
        config = self.config
        if distances is None:
            values = self._relative(scored, scored.total)[:, None]
        else:
            penalised = scored.total[:, None] - config.beta * distances
            values = torch.stack([self._relative(scored, one) for one in penalised.T], dim=1)
        kept = scored.valid
        if config.keep_extremes is not None:
            kept = extremes(values.mean(1), scored.group_ids, scored.valid, config.keep_extremes)
        return Advantages(values.clamp(-config.advantage_clip, config.advantage_clip), kept)

    def _relative(self, scored: Scored, total: Tensor) -> Tensor:
        config, where = self.config, (scored.group_ids, scored.valid)
        how = (config.advantage_std, config.advantage_trim)
        if config.advantage_from == "total":
            return group_advantages(total, *where, *how)
        weighed = each_reward_advantages(scored.values, self.reward_weights, *where, *how)
        return whitened(weighed, scored.valid) if config.advantage_from == "gdpo" else weighed

    def loss(self, replay: Replayed, old_log_prob: Tensor, advantages: Tensor) -> LossTerms:
        """Loss of replayed actions. old_log_prob [B, A]; advantages [B, A] or [B, 1]."""
        policy = clipped_policy_loss(replay.log_prob, old_log_prob, advantages, *self.clip_range)
        metrics = {
            "loss/policy": policy.loss.detach(),
            "log_ratio": policy.log_ratio,
            "clip/above": policy.clipped_above.float(),
            "clip/below": policy.clipped_below.float(),
            # The clip acts only where it lowers the objective: above 1 for a positive advantage,
            # below 1 for a negative one. These two are what learning really lost.
            "clip/positive": (policy.clipped_above & (advantages > 0)).float(),
            "clip/negative": (policy.clipped_below & (advantages < 0)).float(),
        }
        loss = policy.loss if replay.weight is None else policy.loss * replay.weight
        if self.kl_in_loss:
            kl = self.kl(replay)
            metrics["kl"] = kl.detach()
            loss = loss + self.config.beta * kl
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
