"""From a step's rewards to advantages, as a run's configuration has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atelier.algorithms.advantages import (
    comparable,
    each_reward_advantages,
    extremes,
    group_advantages,
    weight_shares,
    whitened,
)
from atelier.algorithms.base import Advantages, Scored
from atelier.config.schema import AlgorithmConfig, RunConfig


@dataclass(frozen=True)
class Comparison:
    """Compares the images of a group, or of a step, which is that of all ranks.

    Attributes:
        reward_weights: by name, for advantages that are made of each reward on its own, where
            the scores do not say what each reward weighs for each image.
        min_valid: share of a group's images that must have a score, else none of it takes part.
    """

    config: AlgorithmConfig
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    min_valid: float = 0.0

    @classmethod
    def of(cls, config: RunConfig) -> Comparison:
        weights = {name: section.weight for name, section in config.rewards.sections().items()}
        return cls(config.algorithm, weights, config.rewards.min_valid_in_group)

    def advantages(self, scored: Scored, penalties: Tensor | None = None) -> Advantages:
        """Advantages of the whole step's samples, clamped to +-advantage_clip.

        Args:
            penalties: [N, A], taken off an action's reward; every action is then compared with
                the same action of its group.
        """
        config = self.config
        ids = self._compared(scored.group_ids)
        kept = comparable(ids, scored.valid, self.min_valid)
        totals = scored.total[:, None] if penalties is None else scored.total[:, None] - penalties
        values = torch.stack([self._relative(scored, one, ids, kept) for one in totals.T], dim=1)
        if config.keep_extremes is not None:
            kept = extremes(values.mean(1), scored.group_ids, kept, config.keep_extremes)
        return Advantages(values.clamp(-config.advantage_clip, config.advantage_clip), kept)

    def _compared(self, group_ids: Tensor) -> Tensor:
        """Equal for samples that are compared with each other."""
        is_step = self.config.advantage_over == "step"
        return torch.zeros_like(group_ids) if is_step else group_ids

    def _relative(self, scored: Scored, total: Tensor, ids: Tensor, valid: Tensor) -> Tensor:
        config = self.config
        how = config.advantage_std, config.advantage_trim, config.advantage_ddof
        if config.advantage_from == "total":
            return group_advantages(total, ids, valid, *how)
        weights: Mapping[str, float | Tensor] = {**self.reward_weights, **scored.weights}
        if config.advantage_from == "gdpo":
            summed = each_reward_advantages(scored.values, weights, ids, valid, *how)
            return whitened(summed, valid, config.advantage_ddof)
        shares = weight_shares(weights, valid)
        return each_reward_advantages(scored.values, shares, ids, valid, *how)
