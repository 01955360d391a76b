"""What in a run's numbers a reader should not overlook: monitoring's verdicts, and what is only
known at the end. One sentence a finding; none means that nothing known to be bad was seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atelier.monitoring import check_evaluations, check_training
from atelier.report.comparison import ComparedMetric


def warnings(
    steps: Sequence[dict[str, Any]],
    history: Sequence[Mapping[str, Mapping[str, Any]]],
    rows: Sequence[ComparedMetric],
) -> list[str]:
    """Findings in training metrics, in the evaluations (first to last) and in the comparison."""
    verdicts = [*check_training(steps), *check_evaluations(history)]
    found = [f"{one.check}: {one.reason}." for one in verdicts if one.level != "ok"]
    return [*found, *_of_comparison({row.metric: row for row in rows}), *_of_scores(steps)]


def _of_comparison(rows: dict[str, ComparedMetric]) -> Iterator[str]:
    proxy, gold = rows.get("similarity"), rows.get("gold")
    if proxy and proxy.verdict == "worse":
        yield "The held-out proxy fell: training made the model worse at what it was trained on."
    if proxy and gold and proxy.verdict == "better" and gold.verdict == "worse":
        yield (
            "The proxy rose while gold fell: the policy may be exploiting the reader instead of "
            "writing better words (reward hacking)."
        )


def _of_scores(steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    missing = sum(1 for step in steps if float(step.get("reward/valid_share", 1.0)) < 1)
    if missing:
        yield f"{missing} steps had images without a score; they were masked, never counted as 0."
    sparse = sum(1 for step in steps if float(step.get("advantage/sparse_group_share", 0.0)) > 0)
    if sparse:
        yield f"{sparse} steps had groups with too few scores; those taught nothing."
