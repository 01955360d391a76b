"""What a reward is: a batch of images in, one score or one typed absence an image out.

A score that could not be had is `Missing`, never a number: an outage must not look like a bad
image. A batch carries group ids and, where the task has them, source images
(editing) and partner images (paired prompts), so that group-wise and relative rewards need no
second protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from PIL.Image import Image

Direction = Literal["higher_is_better", "lower_is_better"]


@dataclass(frozen=True)
class Missing:
    """A score that could not be had, and why. `retryable`: it may be there when asked again."""

    reason: str
    retryable: bool = False


Score = float | Missing


@dataclass(frozen=True)
class ScoreBatch:
    """Images to score. All sequences have one entry an image, in the same order."""

    images: Sequence[Image]
    prompts: Sequence[str]
    metadata: Sequence[Mapping[str, Any]]
    group_ids: Sequence[int]
    source_images: Sequence[Image | None] | None = None
    partner_images: Sequence[Image | None] | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(value) for name, value in vars(self).items() if value is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"a score batch needs one entry an image in every field: {lengths}")

    def __len__(self) -> int:
        return len(self.images)

    @classmethod
    def joined(cls, parts: Sequence[ScoreBatch]) -> ScoreBatch:
        """The images of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        columns = {one.name: [getattr(part, one.name) for part in parts] for one in fields(cls)}
        return cls(**{name: _joined(column, parts) for name, column in columns.items()})

    def at(self, places: Sequence[int]) -> ScoreBatch:
        """The images at these places of the batch, in this order."""
        columns: dict[str, Any] = {
            one.name: _at(getattr(self, one.name), places) for one in fields(self)
        }
        return ScoreBatch(**columns)


def _at(column: Sequence[Any] | None, places: Sequence[int]) -> list[Any] | None:
    return None if column is None else [column[place] for place in places]


def _joined(column: Sequence[Sequence[Any] | None], parts: Sequence[ScoreBatch]) -> Any:
    """One field of several batches as one; None where none of them has it."""
    if all(values is None for values in column):
        return None
    known = [
        [None] * len(part) if values is None else values
        for values, part in zip(column, parts, strict=True)
    ]
    return [value for values in known for value in values]


@dataclass(frozen=True)
class Scores:
    """One reward's scores, in the order of the batch, with what was seen (e.g. the text read)."""

    name: str
    values: Sequence[Score]
    details: Sequence[Mapping[str, Any]] = field(default_factory=list)


class Scorer(Protocol):
    """A reward. `golden` is a batch with known scores: it tells whether the scorer works.

    Making a scorer costs nothing: models are loaded by the first `score`. A trainer whose reward is
    scored by a service makes one only to know name, direction, range and golden sample.
    """

    name: str
    direction: Direction
    value_range: tuple[float, float]

    @property
    def version(self) -> str:
        """What scores: packages, models, mode. Scores of different versions do not compare."""
        ...

    def score(self, batch: ScoreBatch) -> Scores:
        """Score every image; an image that cannot be scored is Missing, not an exception.

        Raises:
            ConfigError: it can never score as it is configured, such as without its model file.
        """
        ...

    def weights(self) -> Sequence[Path]:
        """The model files that decide the scores; empty for a reward without a model."""
        ...

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A batch, its expected scores and the absolute tolerance."""
        ...


@runtime_checkable
class Closeable(Protocol):
    """A scorer that holds something to give back, such as connections."""

    def close(self) -> None:
        """Give it back; a `score` under way ends soon."""
        ...


@runtime_checkable
class Resting(Protocol):
    """A scorer whose server may give back what it holds between the steps."""

    def rest(self, is_main: bool) -> None:
        """Every rank has its scores, and asks for none until the next step."""
        ...
