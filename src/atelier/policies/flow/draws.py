"""The keys of what a rollout draws: of the run's seed, the step and the sample, nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass

from atelier.data.keys import key
from atelier.policies.base import Sample


@dataclass(frozen=True)
class Draws:
    """Keys of one training step."""

    seed: int
    step: int

    def noise(self, sample: Sample) -> int:
        """Of a sample's starting noise, and of what its stochastic steps add."""
        return key("rollout", self.seed, self.step, sample.index, *_round(sample))

    def shared_start(self, sample: Sample) -> int:
        """Of the starting noise that a group shares."""
        return key("start", self.seed, self.step, sample.group_id, *_round(sample))

    def renoising(self, sample: Sample, level: int) -> int:
        """Of what takes a finished image back to a level."""
        return key("renoising", self.seed, self.step, sample.index, level, *_round(sample))

    def levels(self, sample: Sample, count: int, of: int) -> list[int]:
        """`count` of the indices 0 ... of - 1, in a random order."""
        drawn = random.Random(key("levels", self.seed, self.step, sample.index, *_round(sample)))
        return drawn.sample(range(of), count)


def _round(sample: Sample) -> tuple[int, ...]:
    return (sample.round,) if sample.round else ()
