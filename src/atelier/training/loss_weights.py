"""What share of an update's loss each action has: means over actions, samples and segments.

A segment is a mean over its kept samples, and the loss the mean of the segments. Counts are of all
ranks, so that ranks with fewer kept samples count less and an update is the same for any number of
ranks. Source: FocusDiff and Janus-Pro-R1, the Qwen vision GRPO guide.

Of an update with N kept samples, an action of the sample i with T_i trained ones weighs

    sequence      1 / (N T_i)                       GRPO
    micro_batch   1 / (M T), T of its micro-batch   BNPO; M micro-batches with any
    token         U / T, T of the whole step        DAPO; U updates, and all tokens weigh the same
    constant      1 / (N T), the most there can be  Dr.GRPO
    sum           1 / N                             LUSPO
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.algorithms.base import Advantages
from atelier.config.sections.objective import LossMean
from atelier.policies.base import Part, Rollout
from atelier.training.distributed import World


@dataclass(frozen=True)
class Counts:
    """Of some rollouts of all ranks, by segment.

    Attributes:
        samples: that are kept.
        acting: those of them with a trained action; the others came to no end, and are masked.
        actions: their trained actions.
        micro_batches: that have any of these.
    """

    samples: Sequence[float]
    acting: Sequence[float]
    actions: Sequence[float]
    micro_batches: Sequence[float]

    @property
    def segments(self) -> int:
        """How many have a kept sample."""
        return sum(count > 0 for count in self.samples)

    @property
    def acting_segments(self) -> int:
        """How many have a trained action."""
        return sum(count > 0 for count in self.actions)


def counted(
    advantages: Sequence[Advantages],
    rollouts: Sequence[Rollout],
    rows: Sequence[Tensor],
    world: World,
) -> Counts:
    """Collective: what rollouts of all ranks hold; here are those of this rank.

    Args:
        advantages: of the whole step, one a segment.
        rows: positions of each rollout's samples in the step.
    """
    mine = []
    for segment, advantage in enumerate(advantages):
        kept = [advantage.kept[row] for row in rows]
        pairs = zip(rollouts, kept, strict=True)
        actions = [one.trained_count(segment)[own] for one, own in pairs]
        counts = (
            sum(int(own.sum()) for own in kept),
            sum(int((one > 0).sum()) for one in actions),
            sum(int(one.sum()) for one in actions),
            sum(bool(one.any()) for one in actions),
        )
        mine.append(counts)
    everyone = torch.tensor(world.gather(mine), dtype=torch.float64).sum(0)
    return Counts(*everyone.T.tolist())


@dataclass(frozen=True)
class LossWeights:
    """Of one optimizer update.

    Attributes:
        update, step: what the update and the whole step hold.
        updates: how many updates share the step.
    """

    mean: LossMean
    advantages: Sequence[Advantages]
    update: Counts
    step: Counts
    updates: int

    @property
    def nothing_kept(self) -> bool:
        """Whether no action is trained."""
        return not any(self.update.actions)

    def of(self, rollout: Rollout, rows: Tensor, part: Part) -> Tensor:
        """Weights [B, n] of a part's actions, float32, as above; 0 of what is not trained.

        Those of an update sum to 1, but for constant (to at most 1), sum (to the mean length), and
        token where a step has several updates (to 1 on average).
        """
        segment, segments = part.segment, self.update.segments
        own = self._trained(rollout, rows, part)
        if self.mean == "token":
            actions = max(self.step.actions[segment], 1.0)
            return own * self.updates / (actions * self.step.segments)
        if self.mean == "micro_batch":
            together, batches = self._together(rollout, rows, segment)
            return own / (together * batches * segments)
        samples = max(self.update.samples[segment], 1.0)
        if self.mean == "sum":
            return own / (samples * segments)
        if self.mean == "constant":
            length = torch.tensor(float(rollout.longest_segment(segment)))
        else:
            length = self._lengths(rollout, segment)
        return own / (length * samples * segments)

    def shares(self, rollout: Rollout, rows: Tensor, part: Part) -> Tensor:
        """The same for averages of what is watched: those of an update sum to 1 for any mean."""
        segment, segments = part.segment, self.update.acting_segments
        own = self._trained(rollout, rows, part)
        if self.mean == "sequence":
            samples = max(self.update.acting[segment], 1.0)
            return own / (self._lengths(rollout, segment) * samples * segments)
        if self.mean == "micro_batch":
            together, batches = self._together(rollout, rows, segment)
            return own / (together * batches * segments)
        return own / (max(self.update.actions[segment], 1.0) * segments)

    def _trained(self, rollout: Rollout, rows: Tensor, part: Part) -> Tensor:
        kept = self.advantages[part.segment].kept[rows].float()[:, None]
        return rollout.trained(part) * kept

    def _lengths(self, rollout: Rollout, segment: int) -> Tensor:
        return rollout.trained_count(segment)[:, None].clamp(min=1)

    def _together(self, rollout: Rollout, rows: Tensor, segment: int) -> tuple[Tensor, float]:
        """Trained actions of a micro-batch, and how many micro-batches have any."""
        kept = self.advantages[segment].kept[rows]
        together = rollout.trained_count(segment)[kept].sum().clamp(min=1)
        return together, max(self.update.micro_batches[segment], 1.0)


def loss_weights(
    mean: LossMean,
    advantages: Sequence[Advantages],
    rollouts: Sequence[Rollout],
    rows: Sequence[Tensor],
    world: World,
    step: Counts | None = None,
    updates: int = 1,
) -> LossWeights:
    """Collective: weights of an update on these rollouts of this rank.

    Args:
        advantages: of the whole step, one a segment.
        rows: positions of each rollout's samples in the step.
        step: what the whole step holds, where the update is one of several.
        updates: how many of them.
    """
    update = counted(advantages, rollouts, rows, world)
    return LossWeights(mean, advantages, update, step or update, updates)
