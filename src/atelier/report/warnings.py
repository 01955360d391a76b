"""What in a run's numbers a reader should not overlook: monitoring's verdicts, and what is only
known at the end. One sentence a finding; none means that nothing known to be bad was seen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from atelier.evaluation.results import HEADLINE
from atelier.monitoring import check_evaluations, check_training
from atelier.report.comparison import ComparedMetric


def judge_is_reward_words(evaluations: Iterable[Collection[str]]) -> str:
    """That the judge of the held-out images is no witness, and who is.

    Args:
        evaluations: names of the metrics of each; gold is believed where they all have it.
    """
    has_gold = [any(name.startswith("gold") for name in names) for names in evaluations]
    gold = "Believe gold, or evaluate" if has_gold and all(has_gold) else "Evaluate"
    return (
        "The judge of the held-out images is the one that the policy was trained to please, or of "
        f"the same model: its scores rise whatever was learned. {gold} with another judge "
        "(evaluation.SUITE.judge)."
    )


def warnings(
    steps: Sequence[dict[str, Any]],
    history: Sequence[Mapping[str, Mapping[str, Any]]],
    rows: Sequence[ComparedMetric],
    headline: str = HEADLINE,
) -> list[str]:
    """Findings in training metrics, in the evaluations (first to last) and in the comparison.

    Args:
        headline: the suite's first metric, which is what a hacked reward raises.
    """
    verdicts = [*check_training(steps), *check_evaluations(history, proxy=headline)]
    found = [f"{one.check}: {one.reason}." for one in verdicts if one.level != "ok"]
    compared = {row.metric: row for row in rows}
    return [*found, *_of_comparison(compared, headline), *_of_scores(steps)]


def _of_comparison(rows: dict[str, ComparedMetric], headline: str) -> Iterator[str]:
    proxy, gold = rows.get(headline), rows.get("gold")
    if proxy and proxy.verdict == "worse":
        name = proxy.label.split(" (")[0]
        yield f"Held-out {name} fell: training made the model worse at what is looked at first."
    if proxy and gold and proxy.verdict == "better" and gold.verdict == "worse":
        yield (
            "The headline metric rose while gold fell: the policy may be exploiting what scores it "
            "instead of drawing better (reward hacking)."
        )


def _of_scores(steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    missing = sum(1 for step in steps if float(step.get("reward/valid_share", 1.0)) < 1)
    if missing:
        yield f"{missing} steps had images without a score; they were masked, never counted as 0."
    sparse = sum(1 for step in steps if float(step.get("advantage/sparse_group_share", 0.0)) > 0)
    if sparse:
        yield f"{sparse} steps had groups with too few scores; those taught nothing."
