"""One metric over all groups of runs: means, gains, differences, and what they allow to say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from atelier.errors import DataError
from atelier.evaluation.contrasts import Estimate, Groups
from atelier.evaluation.results import Evaluation, pool_of, strata
from atelier.evaluation.statistics import Floats, macro_weights
from atelier.report.compared_runs import ComparedRun, Group
from atelier.report.comparison import units_of
from atelier.report.metric_names import direction_of, is_part, label_of, order_of
from atelier.report.text_tables import signed


@dataclass(frozen=True)
class Pair:
    """The second group against the first: difference of the scores, second less first."""

    first: int
    second: int
    difference: Estimate


@dataclass(frozen=True)
class MetricContrast:
    """A metric over the prompts (or pairs) that have a score in every run.

    Attributes:
        direction: 1 where more is better, -1 where less is, 0 where neither is.
        prompts, left_out: prompts that count, and those some run has no score for.
        means, gains: one a group; a gain is over the same run's evaluation before training.
        pairs: every two groups, the intervals corrected for their number.
        gain_pairs: the same for the gains; other figures only where baselines are not the same.
    """

    metric: str
    direction: int
    prompts: int
    left_out: int
    means: Sequence[float]
    gains: Sequence[Estimate]
    pairs: Sequence[Pair]
    gain_pairs: Sequence[Pair]

    @property
    def label(self) -> str:
        return label_of(self.metric)

    @property
    def short_label(self) -> str:
        return self.label.split(" (")[0].split(":")[0]

    def beats(self, one: int, other: int) -> bool:
        """Whether group `one` is better than `other` by more than chance explains."""
        for pair in self.pairs:
            if {pair.first, pair.second} == {one, other} and pair.difference.excludes_zero:
                better = pair.second if pair.difference.mean * self.direction > 0 else pair.first
                return bool(self.direction) and better == one
        return False

    @property
    def winner(self) -> int | None:
        """The group that beats every other one."""
        groups = range(len(self.means))
        return next((g for g in groups if all(self.beats(g, o) for o in groups if o != g)), None)


def contrast(metric: str, groups: Sequence[Group]) -> MetricContrast:
    """Compare groups on one metric.

    Raises:
        DataError: fewer than two prompts have a score in every run.
    """
    runs = [run for group in groups for run in group.runs]
    columns = [_column(side, metric) for run in runs for side in (run.after, run.before)]
    every = list(columns[0])
    shared = [key for key in every if all(column.get(key) is not None for column in columns)]
    if len(shared) < 2:
        units = units_of(runs[0].after.summary)
        raise DataError(f"{metric}: only {len(shared)} {units} have a score in every run")
    after = [_table([run.after for run in one.runs], metric, shared) for one in groups]
    before = [_table([run.before for run in one.runs], metric, shared) for one in groups]
    paired = seeds_are_paired(groups)
    gains = Groups([a - b for a, b in zip(after, before, strict=True)], paired)
    return MetricContrast(
        metric=metric,
        direction=direction_of(metric),
        prompts=len(shared),
        left_out=len(every) - len(shared),
        means=[float(table.mean()) for table in after],
        gains=[gains.mean(index) for index in range(len(groups))],
        pairs=_pairs(Groups(after, paired), len(groups)),
        gain_pairs=_pairs(gains, len(groups)),
    )


def _pairs(scores: Groups, count: int) -> list[Pair]:
    found = list(combinations(range(count), 2))
    return [Pair(i, j, scores.difference(i, j, len(found))) for i, j in found]


def seeds_are_paired(groups: Sequence[Group]) -> bool:
    """Whether every group has the same seeds."""
    return len(groups) > 1 and len({group.seeds for group in groups}) == 1


def metrics_of(runs: Sequence[ComparedRun]) -> list[str]:
    """The metrics every run has before and after, what matters most first; not those of parts."""
    found = [set(one.summary["metrics"]) for run in runs for one in (run.before, run.after)]
    shared = set.intersection(*found)
    return sorted((name for name in shared if not is_part(name)), key=order_of)


Column = dict[tuple[object, ...], float | None]


def _column(evaluation: Evaluation, metric: str) -> Column:
    """Unit -> score; evaluations are of equal prompts (compared_runs.require_comparable)."""
    return {unit.key: unit.values.get(metric) for unit in evaluation.units}


def _table(
    evaluations: Sequence[Evaluation], metric: str, keys: Sequence[tuple[object, ...]]
) -> Floats:
    return np.array([_scores(one, metric, keys) for one in evaluations], dtype=np.float64)


def _scores(evaluation: Evaluation, metric: str, keys: Sequence[tuple[object, ...]]) -> Floats:
    """What each unit has in the metric, so that the plain mean is the metric's: times its weight
    where units have strata or are pooled. What these differ in then counts as chance, so intervals
    are wide rather than narrow."""
    found = {unit.key: unit for unit in evaluation.units}
    units = [found[key] for key in keys]
    if (pool := pool_of(metric, units)) is not None:
        return pool.contributions
    values = np.array([unit.values[metric] for unit in units], dtype=np.float64)
    own = strata(units)
    return values if own is None else values * macro_weights(own)


# In words --------------------------------------------------------------------------------------


def sentence(contrast: MetricContrast, groups: Sequence[Group]) -> str:
    """Who is better and by how much, or that nothing can be said."""
    names = [group.label for group in groups]
    what = contrast.short_label
    if len(groups) == 1:
        return _gain_sentence(what, contrast.gains[0])
    if contrast.direction == 0:
        return _difference_sentence(what, contrast, names)
    if (winner := contrast.winner) is not None:
        leads = list(_leads(contrast, winner, names))
        word = "better" if len(groups) == 2 else "best"
        return f"{what}: {names[winner]} is {word}, {' and '.join(leads)}."
    ahead = [
        f"{names[one]} is better than {names[other]} ({_interval(contrast, one, other)})"
        for one in range(len(groups))
        for other in range(len(groups))
        if one != other and contrast.beats(one, other)
    ]
    if ahead:
        return f"{what}: no winner among all {len(groups)}, but {'; '.join(ahead)}."
    if len(groups) == 2:
        difference = _interval(contrast, 1, 0)
        return f"{what}: no winner; {names[1]} less {names[0]} is {difference}."
    return f"{what}: no winner; no two configurations differ by more than chance explains."


def _leads(contrast: MetricContrast, winner: int, names: Sequence[str]) -> Iterator[str]:
    for other, name in enumerate(names):
        if other != winner:
            yield f"ahead of {name} by {_interval(contrast, winner, other)}"


def _difference_sentence(what: str, contrast: MetricContrast, names: Sequence[str]) -> str:
    found = [pair for pair in contrast.pairs if pair.difference.excludes_zero]
    if not found:
        return f"{what}: no difference (neither more nor less is better here)."
    parts = [
        f"{names[pair.second]} less {names[pair.first]} is "
        f"{_interval(contrast, pair.second, pair.first)}"
        for pair in found
    ]
    return f"{what}: {'; '.join(parts)} (neither more nor less is better here)."


def _gain_sentence(what: str, gain: Estimate) -> str:
    numbers = f"{signed(gain.mean)}, 95 % interval {signed(gain.low)} to {signed(gain.high)}"
    verb = "changed by" if gain.excludes_zero else "did not change measurably:"
    return f"{what} {verb} {numbers}."


def _interval(contrast: MetricContrast, one: int, other: int) -> str:
    """`one` less `other`, with its interval."""
    for pair in contrast.pairs:
        if (pair.second, pair.first) == (one, other):
            values = (pair.difference.mean, pair.difference.low, pair.difference.high)
            break
        if (pair.first, pair.second) == (one, other):
            values = (-pair.difference.mean, -pair.difference.high, -pair.difference.low)
            break
    else:
        raise ValueError(f"no pair of groups {one} and {other}")
    mean, low, high = map(signed, values)
    return f"{mean} (95 % interval {low} to {high})"
