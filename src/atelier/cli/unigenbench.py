"""Verbs about UniGenBench, the benchmark of test points."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from atelier.cli.evaluations import asked_evaluation
from atelier.config.paths import is_file
from atelier.errors import DataError

if TYPE_CHECKING:
    from atelier.evaluation.point_tables import Line, Table

OF_AN_EVALUATION = ("scores.jsonl", "unigenbench_scores.csv")  # what one holds its verdicts in
LISTED = 10  # images without verdicts that are named


@click.group()
def unigenbench() -> None:
    """UniGenBench: test points of prompts."""


@unigenbench.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--by",
    type=click.Choice(("judge", "gold")),
    help="Whose verdicts. Default: those of the evaluation's headline; of a file, its own.",
)
@click.option(
    "--failures",
    type=click.Choice(("left_out", "zeros")),
    default="left_out",
    show_default=True,
    help="Images without verdicts: left out, as upstream does; or all their test points not shown, "
    "as in DeepGen-RL's tables.",
)
def table(name: str, by: str | None, failures: Literal["left_out", "zeros"]) -> None:
    """Shares of test points by dimension, in percent, with 95 % intervals over prompts.

    NAME is a file of verdicts as UniGenBench's or DeepGen-RL's tools write it (CSV, or JSON lines),
    the folder of an evaluation by the suite unigenbench, or a run (its directory or id).
    """
    from atelier.evaluation.point_tables import table as table_of
    from atelier.evaluation.units import is_judged
    from atelier.report.text_tables import aligned
    from atelier.unigenbench.tallies import MACRO
    from atelier.unigenbench.taxonomy import PRIMARIES

    if not name:
        raise click.UsageError("NAME is empty; name a file of verdicts, an evaluation or a run")
    file = Path(name)
    rows, who, samples = _of_file(file, by) if is_file(file) else _of_evaluation(name, by)
    if not any(is_judged(one, who) for one in rows):
        raise DataError(f"{name}: no image has verdicts by {who}")
    found = table_of(rows, who, samples, failures)
    click.echo(
        aligned([(f"by {who}", "points", "shown", "share (95 %)"), *map(_cells, found.lines)])
    )
    parts = next((line.parts for line in found.lines if line.name == MACRO), 0)
    if parts < len(PRIMARIES):
        click.echo(f"The mean is over {parts} of {len(PRIMARIES)} primary dimensions.")
    _tell_failures(found, failures)


def _cells(line: Line) -> tuple[str, ...]:
    from atelier.unigenbench.tallies import MACRO, OVERALL

    primary, _, sub = line.name.partition(" - ")
    name = {OVERALL: "All test points", MACRO: "Mean of primary dimensions"}.get(line.name)
    share = f"{100 * line.score.mean:.2f}"
    if line.score.low is not None and line.score.high is not None:
        share += f" ({100 * line.score.low:.2f} to {100 * line.score.high:.2f})"
    points, shown = str(line.points.judged), f"{line.points.shown:g}"
    return name or (f"  {sub}" if sub else primary), points, shown, share


def _tell_failures(found: Table, failures: str) -> None:
    from atelier.legible import legible

    counted = "their points count as not shown" if failures == "zeros" else "left out"
    how = f", {counted}" if found.failures else ""
    click.echo(f"{found.images} images, {len(found.failures)} without verdicts{how}")
    for row in found.failures[:LISTED]:
        why = legible(str(row.get("missing") or "no verdicts"))
        click.echo(f"  prompt {row['prompt_id']}, image {row['number']}: {why}")
    if (more := len(found.failures) - LISTED) > 0:
        click.echo(f"  and {more} more")


def _of_evaluation(name: str, by: str | None) -> tuple[list[dict[str, Any]], str, int]:
    """Rows, whose verdicts, and resamples, of an evaluation."""
    from atelier.evaluation.suites.unigenbench import require_rows
    from atelier.evaluation.units import POINT_JUDGES

    asked = asked_evaluation(name, "unigenbench", by, POINT_JUDGES)
    evaluation = asked.evaluation
    require_rows(asked.folder / "scores.jsonl", evaluation.rows)
    return evaluation.rows, asked.who, evaluation.summary["bootstrap_samples"]


def _of_file(path: Path, by: str | None) -> tuple[list[dict[str, Any]], str, int]:
    """The same of a file of verdicts; of one that lies in an evaluation, what that knows."""
    from atelier.evaluation.judgement_files import read_judgements

    if path.name in OF_AN_EVALUATION and is_file(path.parent / "summary.json"):
        return _of_evaluation(str(path.parent), by)
    if by == "gold":
        raise click.UsageError("--by gold is for an evaluation: a file of verdicts has a judge's")
    return read_judgements(path), "judge", 10_000


VERBS = (unigenbench,)
