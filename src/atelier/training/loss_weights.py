"""What share of a step's loss each action has: means over actions, samples and segments.

A segment is a mean over its kept samples, and the loss the mean of the segments. Counts are of all
ranks, so that ranks with fewer kept samples count less and a step is the same for any number of
ranks. Source: spec janus 2, 4.3; DAPO (token), Dr.GRPO (constant).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atelier.algorithms.base import Advantages
from atelier.policies.base import Part, Rollout
from atelier.training.distributed import World

LossMean = Literal["sequence", "token", "constant"]


@dataclass(frozen=True)
class LossWeights:
    """Of one optimizer update. samples and actions: kept ones of each segment, of all ranks."""

    mean: LossMean
    advantages: Sequence[Advantages]
    samples: Sequence[float]
    actions: Sequence[float]

    @property
    def nothing_kept(self) -> bool:
        return not any(self.samples)

    def of(self, rollout: Rollout, rows: Tensor, part: Part) -> Tensor:
        """Weights [B, n] of a part's actions, float32; those of a whole update sum to 1 (constant:
        to at most 1)."""
        segment = part.segment
        trained = rollout.trained(part)
        kept = self.advantages[segment].kept[rows].float()[:, None]
        parts = sum(count > 0 for count in self.samples)
        if self.mean == "token":
            return trained * kept / (max(self.actions[segment], 1.0) * parts)
        if self.mean == "sequence":
            length = rollout.trained_count(segment)[:, None].clamp(min=1)
        else:
            length = torch.tensor(float(rollout.longest_segment(segment)))
        return trained * kept / (length * max(self.samples[segment], 1.0) * parts)


def loss_weights(
    mean: LossMean,
    advantages: Sequence[Advantages],
    rollouts: Sequence[Rollout],
    rows: Sequence[Tensor],
    world: World,
) -> LossWeights:
    """Collective: weights of an update on these rollouts of this rank.

    Args:
        advantages: of the whole step, one a segment.
        rows: positions of each rollout's samples in the step.
    """
    samples, actions = [], []
    for segment, advantage in enumerate(advantages):
        pairs = list(zip(rollouts, rows, strict=True))
        samples.append(sum(float(advantage.kept[row].sum()) for _, row in pairs))
        counts = [one.trained_count(segment)[advantage.kept[row]].sum() for one, row in pairs]
        actions.append(float(sum(counts)))
    everyone = world.gather((samples, actions))
    return LossWeights(
        mean,
        advantages,
        [sum(one) for one in zip(*(part[0] for part in everyone), strict=True)],
        [sum(one) for one in zip(*(part[1] for part in everyone), strict=True)],
    )
