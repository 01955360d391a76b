"""Before and after, as a table for every place that shows it: page, console, Prefect artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atelier.errors import DataError
from atelier.evaluation.results import Comparison
from atelier.report import text_tables
from atelier.report.metric_names import direction_of, is_part, label_of, order_of
from atelier.report.text_tables import interval, signed
from atelier.tracking.run_directory import RunDirectory, read_json_object


def header(units: str) -> tuple[str, ...]:
    """Over `ComparedMetric.cells`. `units`: what is counted, see `units_of`."""
    return ("Held-out metric", "before", "after", "change", "95 % interval", units)


def units_of(summary: Mapping[str, Any]) -> str:
    """What an evaluation's means are over, in the plural."""
    return "pairs" if summary.get("unit") == "pair" else "prompts"


def units_of_run(run: RunDirectory) -> str:
    """The same of the evaluation after training; prompts where there is none yet."""
    path = run.evaluate / "summary.json"
    return units_of(read_json_object(path) if path.exists() else {})


class ComparedMetric(Comparison):
    """A comparison of the evaluation, in the words of the report."""

    @property
    def label(self) -> str:
        return label_of(self.metric)

    @property
    def is_part(self) -> bool:
        """Whether it is of a part of the prompts, such as a category."""
        return is_part(self.metric)

    @property
    def verdict(self) -> str:
        """better | worse | changed | same | unknown: what the interval allows to say."""
        if not self.is_known:
            return "unknown"
        if not self.excludes_zero:
            return "same"
        direction = direction_of(self.metric)
        if not direction:
            return "changed"
        return "better" if self.difference * direction > 0 else "worse"

    def cells(self) -> tuple[str, ...]:
        return (
            self.label,
            f"{self.before:.3f}",
            f"{self.after:.3f}",
            signed(self.difference),
            interval(self.low, self.high),
            str(self.n),
        )


def read_comparison(run: RunDirectory) -> list[ComparedMetric]:
    """What the evaluate stage compared, what matters most first; empty before it ran.

    Raises:
        DataError: comparison.json is not what that stage writes.
    """
    path = run.evaluate / "comparison.json"
    if not path.exists():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        compared = [_of_one_unknown(ComparedMetric(**row)) for row in rows]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: not a comparison of evaluations: {error}") from error
    return sorted(compared, key=lambda row: (row.is_part, order_of(row.metric)))


def _of_one_unknown(row: ComparedMetric) -> ComparedMetric:
    """Files of earlier runs hold an interval of no width for one prompt."""
    return replace(row, low=None, high=None) if row.n == 1 else row


def headline(rows: Sequence[ComparedMetric]) -> str:
    """The result in one sentence."""
    if not rows:
        return "Not evaluated yet."
    first = rows[0]
    verb = {"better": "rose", "worse": "fell", "changed": "changed"}.get(first.verdict)
    name = first.label.split(" (")[0]
    _, before, after, change, bounds, _ = first.cells()
    numbers = f"from {before} to {after}"
    if not first.is_known:
        return (
            f"Held-out {name} went {numbers} ({change}), of one prompt or pair: whether that is "
            "more than chance, one cannot say."
        )
    said = f"{change}, 95 % interval {bounds}"
    if verb is None:
        return f"Held-out {name} did not change measurably: {numbers} ({said})."
    return f"Held-out {name} {verb} {numbers} ({said})."


def as_text(rows: Sequence[ComparedMetric], units: str = "prompts") -> str:
    """For a terminal: aligned columns."""
    return text_tables.aligned([header(units), *(row.cells() for row in rows)])


def as_markdown(rows: Sequence[ComparedMetric], units: str = "prompts") -> str:
    """For a Prefect artifact and a model card."""
    return text_tables.markdown([header(units), *(row.cells() for row in rows)])
