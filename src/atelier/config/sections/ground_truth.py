"""Ground-truth images among the images of a group (Pair-GRPO)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import Factor, Fraction, NonNegativeInt, Section


class GroundTruthConfig(Section):
    """In a pair with images, two of each prompt's group: the prompt's own image, and its
    partner's, which is wrong for it. How often: always at first, then less and less."""

    enabled: bool = Field(False, description="Whether ground-truth images take part.")
    start: Fraction = Field(1.0, description="Probability that a pair's take part, at first.")
    full_updates: NonNegativeInt = Field(
        50, description="Optimizer updates for which it stays so; it falls evenly from there."
    )
    low: Fraction = Field(0.25, description="Probability at low_updates.")
    low_updates: NonNegativeInt = Field(450, description="Updates until it has fallen to low.")
    none_updates: NonNegativeInt = Field(1200, description="Updates until it has fallen to 0.")
    importance: Literal["as_sampled", "probability", "shaped"] = Field(
        "as_sampled",
        description="Ratio of their tokens: as if the policy had drawn them (published); the "
        "policy's probability, as drawn by someone who draws nothing else; p / (p + shaping).",
    )
    shaping: Annotated[float, Field(gt=0, le=10)] = Field(
        0.1, description="What shaped adds to the probability: small ones count for more."
    )
    coefficient: Factor = Field(1.0, description="By what their policy loss is multiplied.")
    kl: bool = Field(True, description="Whether the KL to the reference is taken on them, too.")

    def probability(self, updates: int) -> float:
        """That a pair's ground truth takes part, after so many optimizer updates."""
        knots = (
            (self.full_updates, self.start),
            (self.low_updates, self.low),
            (self.none_updates, 0.0),
        )
        if updates <= self.full_updates:
            return self.start
        for (begun, high), (ended, low) in pairwise(knots):
            if updates <= ended:
                return low + (high - low) * (ended - updates) / (ended - begun)
        return 0.0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, below this section, and problem of what cannot be."""
        if not self.full_updates <= self.low_updates <= self.none_updates:
            yield "low_updates", "lies between full_updates and none_updates"
        if self.low > self.start:
            yield "low", "is at most start: the probability falls"
