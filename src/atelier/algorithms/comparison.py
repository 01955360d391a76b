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
    whitened,
)
from atelier.algorithms.base import Advantages, Scored
from atelier.config.schema import AlgorithmConfig, RunConfig


@dataclass(frozen=True)
class Comparison:
    """Compares the images of a group.

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
        kept = comparable(scored.group_ids, scored.valid, self.min_valid)
        if penalties is None:
            values = self._relative(scored, scored.total, kept)[:, None]
        else:
            penalised = scored.total[:, None] - penalties
            values = torch.stack([self._relative(scored, one, kept) for one in penalised.T], dim=1)
        if config.keep_extremes is not None:
            kept = extremes(values.mean(1), scored.group_ids, kept, config.keep_extremes)
        return Advantages(values.clamp(-config.advantage_clip, config.advantage_clip), kept)

    def _relative(self, scored: Scored, total: Tensor, valid: Tensor) -> Tensor:
        config, ids = self.config, scored.group_ids
        std, trim, ddof = config.advantage_std, config.advantage_trim, config.advantage_ddof
        if config.advantage_from == "total":
            return group_advantages(total, ids, valid, std, trim, ddof)
        weights: dict[str, float | Tensor] = {**self.reward_weights, **scored.weights}
        weighed = each_reward_advantages(scored.values, weights, ids, valid, std, trim, ddof)
        return whitened(weighed, valid) if config.advantage_from == "gdpo" else weighed
