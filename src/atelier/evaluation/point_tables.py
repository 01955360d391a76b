"""Tables of test points: shares of every dimension, over all, and who has no verdicts.

Rows are those of an evaluation by the suite unigenbench, or of a judgement file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atelier.evaluation.results import summarize
from atelier.evaluation.statistics import Interval
from atelier.evaluation.units import is_judged, point_metric, tallies_of
from atelier.unigenbench.tallies import Tally, names

Row = Mapping[str, Any]
Failures = Literal["left_out", "zeros"]


@dataclass(frozen=True)
class Line:
    """A score in [0, 1], and the test points that it is of.

    Attributes:
        name: of a dimension, OVERALL or MACRO.
        parts: of whose shares it is the mean: 1, but for MACRO.
    """

    name: str
    points: Tally
    parts: int
    score: Interval


@dataclass(frozen=True)
class Table:
    """Scores of images: OVERALL and MACRO first, then those dimensions that have test points.

    Attributes:
        failures: the rows that have no verdicts.
    """

    lines: Sequence[Line]
    images: int
    failures: Sequence[Row]

    @property
    def judged_share(self) -> float:
        """The share of the images that have verdicts."""
        return 1 - len(self.failures) / self.images


def table(
    rows: Sequence[Row], who: str, samples: int = 10_000, failures: Failures = "left_out"
) -> Table:
    """The table of rows, of which there is at least one.

    Args:
        who: whose verdicts, "judge" or "gold".
        samples: resamples of the intervals, over prompts.
        failures: what becomes of images without verdicts: they are left out, as upstream does; or
            all their points count as not shown, as in DeepGen-RL's tables.
    """
    failed = [row for row in rows if not is_judged(row, who)]
    if failures == "zeros":
        rows = [row if is_judged(row, who) else _as_zeros(row, who) for row in rows]
    return _table(rows, who, summarize(rows, (), samples, "pooled prompt"), failed)


def summarized_table(
    rows: Sequence[Row], who: str, metrics: Mapping[str, Mapping[str, Any]]
) -> Table:
    """The same, images without verdicts left out, of rows that were summarized.

    Args:
        metrics: as `results.summarize` gives them of these rows.
    """
    return _table(rows, who, metrics, [row for row in rows if not is_judged(row, who)])


def _table(
    rows: Sequence[Row],
    who: str,
    means: Mapping[str, Mapping[str, Any]],
    failed: Sequence[Row],
) -> Table:
    found = tallies_of(rows, who)
    lines = [
        Line(
            name,
            sum(found[name].values(), Tally(0, 0)),
            len(found[name]),
            Interval(**means[point_metric(who, name)]),
        )
        for name in names()
        if name in found
    ]
    return Table(lines, len(rows), failed)


def as_json(found: Table) -> dict[str, Any]:
    """A table as it is kept: scores in [0, 1]."""
    return {
        "images": found.images,
        "judged_share": found.judged_share,
        "scores": {
            line.name: {
                "score": line.score.mean,
                "low": line.score.low,
                "high": line.score.high,
                "prompts": line.score.n,
                "points": line.points.judged,
                "shown": line.points.shown,
            }
            for line in found.lines
        },
        "failures": [
            {key: row.get(key) for key in ("image", "prompt_id", "number", "missing")}
            for row in found.failures
        ],
    }


def _as_zeros(row: Row, who: str) -> dict[str, Any]:
    return {**row, "points": [{**one, who: 0.0} for one in row["points"]]}
