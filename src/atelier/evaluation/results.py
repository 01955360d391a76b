"""The result of an evaluation, whatever the suite: a row an image, a summary, and comparisons.

A row holds a number or None for every metric. None is a score that could not be had: it enters no
mean, no interval and no comparison, and the summary counts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atelier.errors import DataError
from atelier.evaluation.statistics import mean_interval, paired_difference

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """Rows in the order of the images; the summary's `metrics` are what can be compared.

    summary: {suite, images, missing, reader, bootstrap_samples,
    metrics: {name: {mean, low, high, n}}}; a metric that no row has is left out.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]

    def mean(self, metric: str) -> float | None:
        """The mean of a metric, None if no image has it."""
        found = self.summary["metrics"].get(metric)
        return None if found is None else float(found["mean"])


@dataclass(frozen=True)
class Comparison:
    """A metric over the n prompts that both sides have: means, difference, 95 % interval of it."""

    metric: str
    before: float
    after: float
    difference: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def summarize(
    rows: Sequence[Row], metrics: Sequence[str], samples: int = 10_000
) -> dict[str, dict[str, Any]]:
    """Mean, interval and count of every metric over the rows that have it."""
    present = {name: _present(rows, name) for name in metrics}
    return {
        name: asdict(mean_interval(values, samples)) for name, values in present.items() if values
    }


def compare(before: Evaluation, after: Evaluation, samples: int = 10_000) -> list[Comparison]:
    """Before and after by prompt, in the order of the metrics of `before`.

    Only pairs with a score on both sides count, so the two means are of the same prompts.

    Raises:
        DataError: the two share no prompt, or one has a prompt twice.
    """
    first, second = _by_prompt(before), _by_prompt(after)
    shared = [prompt for prompt in first if prompt in second]
    if not shared:
        raise DataError("the two evaluations share no prompt: they cannot be compared")
    comparisons = []
    for metric in before.summary["metrics"]:
        pairs = [
            (left, right)
            for prompt in shared
            if (left := first[prompt].get(metric)) is not None
            and (right := second[prompt].get(metric)) is not None
        ]
        if pairs:
            comparisons.append(_compare(metric, pairs, samples))
    return comparisons


def _compare(metric: str, pairs: Sequence[tuple[float, float]], samples: int) -> Comparison:
    lefts, rights = zip(*pairs, strict=True)
    difference = paired_difference(lefts, rights, samples)
    return Comparison(
        metric=metric,
        before=sum(lefts) / len(pairs),
        after=sum(rights) / len(pairs),
        difference=difference.mean,
        low=difference.low,
        high=difference.high,
        n=len(pairs),
    )


def _by_prompt(evaluation: Evaluation) -> dict[tuple[Any, Any], Row]:
    rows: dict[tuple[Any, Any], Row] = {
        (row.get("dataset_id"), row["prompt_id"]): row for row in evaluation.rows
    }
    if len(rows) < len(evaluation.rows):
        raise DataError("an evaluation has two rows for one prompt: rows cannot be paired")
    return rows


def _present(rows: Sequence[Row], metric: str) -> list[float]:
    return [float(row[metric]) for row in rows if row.get(metric) is not None]
