"""The result of an evaluation, whatever the suite: a row an image, a summary, and comparisons.

A row holds a number or None for every metric. None is a score that could not be had: it enters no
mean, no interval and no comparison, and the summary counts it. Means are over units (units.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from atelier.errors import DataError
from atelier.evaluation.pooled import Pool, pooled_difference, pooled_interval
from atelier.evaluation.statistics import (
    Bounded,
    Interval,
    mean_interval,
    mean_of,
    paired_difference,
)
from atelier.evaluation.units import Row, Unit, units_of
from atelier.unigenbench.tallies import Tally

# What a summary without them means: those of runs from before there were several suites.
HEADLINE, IMAGE_SCORE, UNIT = "similarity", "similarity", "prompt"


@dataclass(frozen=True)
class Evaluation:
    """Rows in the order of the images; the summary's `metrics` are what can be compared.

    summary: {suite, unit, headline, image_score, images, missing, reader, judge, judge_is_reward,
    bootstrap_samples, metrics: {name: {mean, low, high, n}}}, and of baseline and final evaluation
    unusable_prompts, how many of all held-out prompts the suite cannot use. A metric that no unit
    has is left out. `headline` is the metric a reader wants first, `image_score` the column of the
    rows that says how good one image is.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def units(self) -> list[Unit]:
        """What the means are over.

        Raises:
            DataError: an image is there twice.
        """
        if len({row["image"] for row in self.rows}) < len(self.rows):
            raise DataError("an evaluation has two rows for one image: rows cannot be paired")
        return units_of(self.rows, self.summary.get("unit", UNIT), self.summary["metrics"])

    def mean(self, metric: str) -> float | None:
        """The mean of a metric, None if no unit has it."""
        found = self.summary["metrics"].get(metric)
        return None if found is None else float(found["mean"])


@dataclass(frozen=True)
class Comparison(Bounded):
    """A metric over the n units that both sides have: means, difference, 95 % interval of it
    (None where n is 1)."""

    metric: str
    before: float
    after: float
    difference: float
    low: float | None
    high: float | None
    n: int


def summarize(
    rows: Sequence[Row], metrics: Collection[str], samples: int = 10_000, unit: str = UNIT
) -> dict[str, dict[str, Any]]:
    """Mean, interval and count of every metric over the units that have it."""
    units = units_of(rows, unit, metrics)
    names = dict.fromkeys([*metrics, *(name for one in units for name in one.values)])
    found = {name: [one for one in units if name in one.values] for name in names}
    return {name: asdict(_mean(name, own, samples)) for name, own in found.items() if own}


def restricted(evaluation: Evaluation, images: Collection[str]) -> Evaluation:
    """The same evaluation of some of its images, `Row["image"]`, alone."""
    rows = [row for row in evaluation.rows if row["image"] in images]
    old = evaluation.summary
    score, unit = old.get("image_score", IMAGE_SCORE), old.get("unit", UNIT)
    changed = {
        "images": len(rows),
        "missing": sum(row.get(score) is None for row in rows),
        "metrics": summarize(rows, old["metrics"], old["bootstrap_samples"], unit),
    }
    return Evaluation(rows, old | changed)


def compare(before: Evaluation, after: Evaluation, samples: int = 10_000) -> list[Comparison]:
    """Before and after by unit, in the order of the metrics of `before`.

    Only pairs with a score on both sides count, so the two means are of the same units.

    Raises:
        DataError: the two share no unit, or one has an image twice.
    """
    first, second = ({unit.key: unit for unit in one.units} for one in (before, after))
    shared = [(first[key], second[key]) for key in first if key in second]
    if not shared:
        raise DataError("the two evaluations share no prompt: they cannot be compared")
    comparisons = []
    for metric in before.summary["metrics"]:
        pairs = [pair for pair in shared if all(metric in unit.values for unit in pair)]
        if pairs:
            comparisons.append(_compare(metric, pairs, samples))
    return comparisons


def strata(units: Sequence[Unit]) -> list[str | None] | None:
    """The stratum of each unit; None where units have none."""
    found = [unit.stratum for unit in units]
    return None if all(stratum is None for stratum in found) else found


def pool_of(metric: str, units: Sequence[Unit]) -> Pool | None:
    """The test points that a metric of the units is pooled from; None of a plain mean."""
    if any(metric not in unit.tallies for unit in units):
        return None
    own = [unit.tallies[metric] for unit in units]
    parts = dict.fromkeys(part for one in own for part in one)
    table = [[one.get(part, Tally(0, 0)) for part in parts] for one in own]
    return Pool(
        shown=np.array([[one.shown for one in row] for row in table], dtype=np.float64),
        judged=np.array([[one.judged for one in row] for row in table], dtype=np.float64),
    )


def _mean(metric: str, units: Sequence[Unit], samples: int) -> Interval:
    if (pool := pool_of(metric, units)) is not None:
        return pooled_interval(pool, samples)
    values = [one.values[metric] for one in units]
    return mean_interval(values, samples, strata=strata(units))


def _compare(metric: str, pairs: Sequence[tuple[Unit, Unit]], samples: int) -> Comparison:
    left, right = [one for one, _ in pairs], [other for _, other in pairs]
    first, second = pool_of(metric, left), pool_of(metric, right)
    if first is not None and second is not None:
        before, after = first.score, second.score
        difference = pooled_difference(first, second, samples)
    else:
        lefts, rights = ([unit.values[metric] for unit in side] for side in (left, right))
        own = strata(left)
        before, after = mean_of(lefts, own), mean_of(rights, own)
        difference = paired_difference(lefts, rights, samples, strata=own)
    return Comparison(
        metric=metric,
        before=before,
        after=after,
        difference=difference.mean,
        low=difference.low,
        high=difference.high,
        n=len(pairs),
    )
