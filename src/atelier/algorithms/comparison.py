"""From a step's rewards to advantages, as a run's configuration has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atelier.algorithms.advantages import (
    Std,
    comparable,
    each_reward_advantages,
    each_reward_parts,
    extremes,
    group_advantages,
    weight_shares,
    whitened,
)
from atelier.algorithms.base import Advantages, Scored
from atelier.config.schema import RunConfig
from atelier.config.sections.algorithm import AlgorithmConfig


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
        ids, kept = self.groups(scored), self.comparable(scored)
        totals = scored.total[:, None] if penalties is None else scored.total[:, None] - penalties
        values = torch.stack([self._relative(scored, one, ids, kept) for one in totals.T], dim=1)
        if config.keep_extremes is not None:
            kept = extremes(values.mean(1), scored.group_ids, kept, config.keep_extremes)
        return Advantages(values.clamp(-config.advantage_clip, config.advantage_clip), kept)

    def groups(self, scored: Scored) -> Tensor:
        """[N], equal for samples that are compared with each other."""
        is_step = self.config.advantage_over == "step"
        return torch.zeros_like(scored.group_ids) if is_step else scored.group_ids

    def comparable(self, scored: Scored) -> Tensor:
        """[N], who takes part: see `advantages.comparable`."""
        return comparable(self.groups(scored), scored.valid, self.min_valid)

    def compared(self, scored: Scored) -> Tensor:
        """What is compared: the total [N], or each reward that counts on its own [N, R]."""
        if self.config.advantage_from == "total":
            return scored.total
        return torch.stack(list(_weighted(scored.values, self._weights(scored)).values()), dim=1)

    def parts(self, scored: Scored) -> dict[str, Tensor]:
        """What each reward adds to what becomes the advantage, by name [N]: weight times score, or
        where each reward is compared on its own, what comes of that."""
        if self.config.advantage_from == "total":
            return _weighted(scored.values, self._weights(scored))
        shares, ids, valid = self._shares(scored), self.groups(scored), self.comparable(scored)
        return each_reward_parts(scored.values, shares, ids, valid, *self._how)

    def _relative(self, scored: Scored, total: Tensor, ids: Tensor, valid: Tensor) -> Tensor:
        config = self.config
        if config.advantage_from == "total":
            return group_advantages(total, ids, valid, *self._how)
        summed = each_reward_advantages(scored.values, self._shares(scored), ids, valid, *self._how)
        if config.advantage_from == "gdpo":
            return whitened(summed, valid, config.advantage_ddof)
        return summed

    def _shares(self, scored: Scored) -> Mapping[str, float | Tensor]:
        """How much each reward counts where it is compared on its own."""
        weights = self._weights(scored)
        if self.config.advantage_from == "each_reward":
            return {**weight_shares(weights, scored.valid)}
        return weights

    def _weights(self, scored: Scored) -> dict[str, float | Tensor]:
        return {**self.reward_weights, **scored.weights}

    @property
    def _how(self) -> tuple[Std, float, int]:
        config = self.config
        return config.advantage_std, config.advantage_trim, config.advantage_ddof


def _weighted(
    values: Mapping[str, Tensor], weights: Mapping[str, float | Tensor]
) -> dict[str, Tensor]:
    """Weight times score [N] by name, 0 where the weight is, even of a score that is missing."""
    found = {}
    for name, own in values.items():
        weight = torch.as_tensor(weights.get(name, 0.0), dtype=torch.float64).expand(own.shape)
        found[name] = torch.where(weight != 0, weight * own.double(), 0.0)
    return found
