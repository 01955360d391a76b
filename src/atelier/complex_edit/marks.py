"""The marks of an edited image, 0 to 10, and how they are read.

Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

Mark = Literal["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]
HIGHEST = 10.0


class Alignment(BaseModel):
    """The answer about source and edited image. Reasons come first: marks follow from them."""

    reasoning: str
    instruction_following: Mark
    identity_preservation: Mark


class Quality(BaseModel):
    """The answer about the edited image alone, whatever it was meant to show."""

    perceptual_quality: Mark


@dataclass(frozen=True)
class Marks:
    """Of one image, each in [0, 10]; means where it was measured more than once."""

    following: float
    preservation: float
    quality: float

    @property
    def overall(self) -> float:
        """The mean of the three. Of an image that was not edited at all it is some 6."""
        return (self.following + self.preservation + self.quality) / 3


def marks_of(numbers: Mapping[str, float]) -> Marks:
    """What both answers say."""
    return Marks(
        numbers["instruction_following"],
        numbers["identity_preservation"],
        numbers["perceptual_quality"],
    )
