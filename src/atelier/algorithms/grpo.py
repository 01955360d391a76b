"""GRPO: group-relative advantages, a loss of ratios, and KL to the reference.

The same composition serves flow policies (an action is a denoising transition: Flow-GRPO and its
windowed Fast form) and token policies (an action is a token). Its published variants are settings
of it: docs/algorithms/grpo-variants.md. Paper: Flow-GRPO.
Deviations: groups are integers, not decoded prompts; nothing is dropped per rank, samples without a
score get weight 0 and the rest is weighted by the global count.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.algorithms.base import Advantages, LossTerms, Replayed, Scored, spread
from atelier.algorithms.comparison import Comparison
from atelier.algorithms.ground_truth import ground_truth_loss
from atelier.algorithms.kl import KL_FORMS
from atelier.algorithms.policy_loss import (
    PolicyLoss,
    cispo_policy_loss,
    clipped_policy_loss,
    of_sequences,
    sapo_policy_loss,
    vespo_policy_loss,
)
from atelier.algorithms.ratio import ratio_of
from atelier.config.log_probs import clip_ranges
from atelier.config.schema import RunConfig
from atelier.config.sections.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class Grpo:
    """See algorithms.base.Algorithm. `clip_range`: how far a ratio may be below and above 1."""

    config: AlgorithmConfig
    clip_range: tuple[float, float]
    comparison: Comparison

    keeps_behaviour = False
    gap_name = "|ratio-1|"
    gap_unit = "the clip range"
    gap_causes = "a 16-bit policy.dtype (set rollout.old_log_prob=recompute)"

    @classmethod
    def of(cls, config: RunConfig) -> Grpo:
        return cls(config.algorithm, clip_ranges(config), Comparison.of(config))

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
        return KL_FORMS[self.config.kl](replay.statistics)

    def advantages(self, scored: Scored, distances: Tensor | None = None) -> Advantages:
        """See Algorithm. beta x the distance of an action is taken off its reward."""
        penalties = None if distances is None else self.config.beta * distances
        return self.comparison.advantages(scored, penalties)

    def loss(
        self,
        replay: Replayed,
        old_log_prob: Tensor | None,
        advantages: Tensor,
        truth: Tensor | None = None,
        trained: Tensor | None = None,
    ) -> LossTerms:
        """See Algorithm.

        Raises:
            ValueError: the policy's actions have no probability.
        """
        if replay.log_prob is None or old_log_prob is None:
            raise ValueError("GRPO compares probabilities, and these actions have none")
        own = torch.ones_like(old_log_prob) if trained is None else trained
        log_prob, old = replay.log_prob, old_log_prob
        if self.config.ratio_level == "sequence":
            log_prob, old = of_sequences(log_prob, own), of_sequences(old, own)
        policy = self._policy_loss(log_prob, old, advantages, own)
        loss = policy.loss
        if truth is not None:
            given = self._ground_truth_loss(replay.log_prob, old_log_prob, advantages)
            loss = torch.where(truth[:, None], given, loss)
        metrics = {
            "loss/policy": loss.detach(),
            "log_ratio": policy.log_ratio,
            "clip/above": policy.clipped_above.float(),
            "clip/below": policy.clipped_below.float(),
            # The clip acts only where it lowers the objective: above 1 for a positive advantage,
            # below 1 for a negative one. These two are what learning really lost.
            "clip/positive": (policy.cut & (advantages > 0)).float(),
            "clip/negative": (policy.cut & (advantages < 0)).float(),
        }
        loss = loss if replay.weight is None else loss * replay.weight
        if self.kl_in_loss:
            kl = self.kl(replay)
            if self.config.kl_correction:
                kl = kl * ratio_of(log_prob - old)
            if truth is not None and not self.config.ground_truth.kl:
                kl = kl * ~truth[:, None]
            metrics["kl"] = kl.detach()
            loss = loss + self.config.beta * kl
        return LossTerms(loss, policy.log_ratio, metrics)

    def _policy_loss(
        self, log_prob: Tensor, old: Tensor, advantages: Tensor, trained: Tensor
    ) -> PolicyLoss:
        """By the run's surrogate; see policy_loss."""
        config, (low, high) = self.config, self.clip_range
        match config.surrogate:
            case "clipped":
                delta = config.clip_delta
                return clipped_policy_loss(log_prob, old, advantages, low, high, delta)
            case "cispo":
                return cispo_policy_loss(log_prob, old, advantages, high)
            case "sapo":
                gates = config.sapo.temperature_positive, config.sapo.temperature_negative
                return sapo_policy_loss(log_prob, old, advantages, *gates)
            case "vespo":
                return vespo_policy_loss(log_prob, old, advantages, trained)

    def _ground_truth_loss(self, log_prob: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
        config = self.config.ground_truth
        how = config.importance, config.shaping
        return config.coefficient * ground_truth_loss(log_prob, old, advantages, *how)

    def behaviour_decay(self, updates: int) -> float:
        return 0.0

    # Drift is the log-ratio ----------------------------------------------------------------------

    @property
    def gap_scale(self) -> float:
        return min(self.clip_range)

    def gap(self, drift: Tensor) -> dict[str, float]:
        return spread((drift.double().exp() - 1).abs().flatten())

    def drift_metrics(self, drift: Tensor) -> dict[str, float]:
        return {
            "log_ratio/std": float(drift.std(correction=0)),
            "ratio/mean_abs_dev": self.gap(drift)["mean"],
        }
