"""Scores of a step as arrays: each reward's values, their weighted sum, what is missing and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atelier.rewards.base import Missing, Score, Scores
from atelier.rewards.checks import LARGEST


@dataclass(frozen=True)
class ScoreTable:
    """N images, in the order submitted.

    Attributes:
        values: reward name -> float32 [N], NaN where the score is missing.
        valid: bool [N]: every reward with a weight other than 0 has a score, and float32 holds
            their sum.
        total: float32 [N], the weighted sum of those rewards; NaN where not valid.
        reasons: N entries: why scores are missing ("ocr: ..."), or the sum is; None where none is.
        details: reward name -> N mappings of what the scorer saw (empty where it says nothing).
    """

    values: dict[str, NDArray[np.float32]]
    valid: NDArray[np.bool_]
    total: NDArray[np.float32]
    reasons: list[str | None]
    details: dict[str, list[Mapping[str, Any]]]

    def __len__(self) -> int:
        return len(self.valid)

    @property
    def valid_share(self) -> float:
        """Share of the images that have a total; 1 for no images."""
        return float(self.valid.mean()) if len(self) else 1.0


def tabulate(scores: Mapping[str, Sequence[Scores]], weights: Mapping[str, float]) -> ScoreTable:
    """Join the batches of every reward and sum them by weight.

    Args:
        scores: reward name -> its batches; as `checked` returns them, and the same images for all.
        weights: reward name -> weight; 0 keeps the reward out of `total` and `valid`.
    """
    joined = {name: [v for part in parts for v in part.values] for name, parts in scores.items()}
    count = len(next(iter(joined.values())))
    values = {
        name: np.array(
            [np.nan if isinstance(item, Missing) else item for item in column], dtype=np.float32
        )
        for name, column in joined.items()
    }
    known, total = _weighted_sum(values, weights, count)
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
    return ScoreTable(values, valid, total.astype(np.float32), reasons, details)


def _weighted_sum(
    values: Mapping[str, NDArray[np.float32]], weights: Mapping[str, float], count: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which images have every weighted score, and the sums."""
    known = np.ones(count, dtype=np.bool_)
    total = np.zeros(count, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is told by its reason
        for name, weight in weights.items():
            if weight:
                known &= ~np.isnan(values[name])
                total += weight * values[name].astype(np.float64)
    return known, total


def _reason(scores: Mapping[str, Score], too_large: bool) -> str | None:
    """Why one image's scores are missing, or its total is."""
    missing = [f"{name}: {s.reason}" for name, s in scores.items() if isinstance(s, Missing)]
    if too_large:
        missing.append("total: the weighted sum is more than float32 holds")
    return "; ".join(missing) or None
