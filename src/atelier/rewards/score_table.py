"""Scores of a step as arrays: each reward's values, their weighted sum, what is missing and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from atelier.rewards.base import Missing, Score, Scores
from atelier.rewards.checks import LARGEST


@dataclass(frozen=True)
class ScoreTable:
    """N images, in the order submitted.

    Attributes:
        values: reward name -> float32 [N], NaN where the score is missing or not asked for.
        weights: reward name -> float64 [N]; 0 only logs, or is not asked for.
        valid: bool [N]: every reward with a weight other than 0 has a score, and float32 holds
            their sum.
        total: float32 [N], the weighted sum of those rewards; NaN where not valid.
        reasons: N entries: why scores are missing ("ocr: ..."), or the sum is; None where none is.
        details: reward name -> N mappings of what the scorer saw (empty where it says nothing).
    """

    values: dict[str, NDArray[np.float32]]
    weights: dict[str, NDArray[np.float64]]
    valid: NDArray[np.bool_]
    total: NDArray[np.float32]
    reasons: list[str | None]
    details: dict[str, list[Mapping[str, Any]]]

    def __len__(self) -> int:
        return len(self.valid)


# In the place of a score that nobody wants: the image's data set does not name the reward.
NOT_ASKED: Final = Missing("its data set does not name this reward")


def spread(scores: Scores, places: Sequence[int], count: int) -> Scores:
    """The scores of some images of a batch of `count` as those of all: NOT_ASKED elsewhere."""
    values: list[Score] = [NOT_ASKED] * count
    details: list[Mapping[str, Any]] = [{}] * count
    seen = scores.details or [{}] * len(places)
    for place, value, detail in zip(places, scores.values, seen, strict=True):
        values[place], details[place] = value, detail
    return Scores(scores.name, values, details)


def tabulate(
    scores: Mapping[str, Sequence[Scores]], weights: Mapping[str, Sequence[float]]
) -> ScoreTable:
    """Join the batches of every reward and sum them by weight.

    Args:
        scores: reward name -> its batches; as `checked` returns them, and the same images for all.
        weights: reward name -> the weight of each image; 0 keeps the reward out of the image's
            `total` and `valid`.
    """
    joined = {name: [v for part in parts for v in part.values] for name, parts in scores.items()}
    count = len(next(iter(joined.values())))
    values = {
        name: np.array(
            [np.nan if isinstance(item, Missing) else item for item in column], dtype=np.float32
        )
        for name, column in joined.items()
    }
    weighed = {name: np.array(weights[name], dtype=np.float64) for name in joined}
    known, total = _weighted_sum(values, weighed, count)
    valid = known & (np.abs(total) <= LARGEST)
    too_large = known & ~valid
    total[~valid] = np.nan
    details = {
        name: [detail for part in parts for detail in part.details or [{}] * len(part.values)]
        for name, parts in scores.items()
    }
    rows = zip(*joined.values(), strict=True)
    reasons = [
        _reason(dict(zip(joined, row, strict=True)), large)
        for row, large in zip(rows, too_large, strict=True)
    ]
    return ScoreTable(values, weighed, valid, total.astype(np.float32), reasons, details)


def _weighted_sum(
    values: Mapping[str, NDArray[np.float32]],
    weights: Mapping[str, NDArray[np.float64]],
    count: int,
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which images have every weighted score, and the sums."""
    known = np.ones(count, dtype=np.bool_)
    total = np.zeros(count, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is told by its reason
        for name, weight in weights.items():
            counts = weight != 0
            known &= ~(counts & np.isnan(values[name]))
            total += np.where(counts, weight * values[name].astype(np.float64), 0.0)
    return known, total


def _reason(scores: Mapping[str, Score], too_large: bool) -> str | None:
    """Why one image's scores are missing, or its total is."""
    missing = [
        f"{name}: {score.reason}"
        for name, score in scores.items()
        if isinstance(score, Missing) and score is not NOT_ASKED
    ]
    if too_large:
        missing.append("total: the weighted sum is more than float32 holds")
    return "; ".join(missing) or None
