"""What a reader of a comparison must know before believing it. One sentence a finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atelier.report.compared_runs import ComparedRun, Group
from atelier.report.comparison import units_of
from atelier.report.metric_contrasts import MetricContrast, seeds_are_paired
from atelier.report.warnings import judge_is_reward_words


def comparison_warnings(
    groups: Sequence[Group], metrics: Sequence[MetricContrast], start_alike: bool
) -> list[str]:
    """Findings about seeds, data, code, baselines (`start_alike`: all equal) and missing scores."""
    runs = [run for group in groups for run in group.runs]
    found = [
        *_of_seeds(groups),
        *_of_origins(groups, runs),
        *_missing(metrics, units_of(runs[0].after.summary)),
    ]
    if any(run.after.summary.get("judge_is_reward") for run in runs):
        found.append(judge_is_reward_words(run.after.summary["metrics"] for run in runs))
    if not start_alike:
        found.append(
            "The runs did not start alike: their scores before training differ, so look at the "
            "differences of the gains too."
        )
    return found


def _of_seeds(groups: Sequence[Group]) -> Iterator[str]:
    fewest = min(len(group.runs) for group in groups)
    if all(len(group.runs) == 1 for group in groups):
        yield (
            "One seed a configuration: this compares these very runs. Other seeds may turn out "
            "otherwise; train each configuration with three or more (train.seed)."
        )
    elif fewest == 1:
        lone = ", ".join(group.letter for group in groups if len(group.runs) == 1)
        yield f"{lone} has one seed: how far its seeds lie apart is taken from the other groups."
    elif fewest == 2 and len(groups) == 2:
        yield (
            "Two seeds hardly show how far seeds lie apart: at this size one interval in eight "
            "may miss the truth, not one in twenty."
        )
    if len(groups) > 1 and not seeds_are_paired(groups) and fewest > 1:
        yield "The configurations were not trained with the same seeds: seeds are not paired."


def _of_origins(groups: Sequence[Group], runs: Sequence[ComparedRun]) -> Iterator[str]:
    if len({run.data.get("train.parquet") for run in runs}) > 1:
        yield "The runs were trained on different prompts: a difference may be the data's."
    by_code = any("code" in group.differing for group in groups)
    if len({run.code for run in runs}) > 1 and not by_code:
        yield "The runs are of different code: a difference may be the code's."
    if changed := sum(bool((run.description.get("git") or {}).get("dirty")) for run in runs):
        yield f"{changed} of {len(runs)} runs were made with uncommitted changes to the code."


def _missing(metrics: Sequence[MetricContrast], units: str) -> Iterator[str]:
    for one in metrics:
        if one.left_out:
            yield (
                f"{one.short_label}: {one.left_out} of {one.left_out + one.prompts} {units} are "
                "left out, because some run has no score for them."
            )
