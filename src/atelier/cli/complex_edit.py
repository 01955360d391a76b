"""Verbs about Complex-Edit, the benchmark of instructions that ask for several edits."""

from __future__ import annotations

import click

from atelier.cli.evaluations import asked_evaluation

# Score -> what the benchmark calls it.
NAMES = {
    "following": "IF",
    "preserving": "IP",
    "quality": "PQ",
    "overall": "O",
    "edited": "sqrt(IF IP)",
}


@click.group()
def complex_edit() -> None:
    """Complex-Edit: instructions that ask for several edits."""


@complex_edit.command()
@click.argument("name", metavar="FOLDER")
@click.option(
    "--by",
    type=click.Choice(("judge", "gold")),
    help="Whose scores. Default: those of the evaluation's headline.",
)
def summary(name: str, by: str | None) -> None:
    """Marks of an evaluation by level and origin, 0 to 10, with 95 % intervals.

    FOLDER is that of an evaluation by the suite complex_edit, or a run (its directory or id). IF is
    instruction following, IP identity preservation, PQ perceptual quality, O the mean of the three.
    """
    from atelier.evaluation.statistics import Interval
    from atelier.evaluation.suites.complex_edit import SCORES, require_rows, table
    from atelier.report.text_tables import aligned

    asked = asked_evaluation(name, "complex_edit", by, SCORES)
    evaluation, who = asked.evaluation, asked.who
    require_rows(asked.folder / "scores.jsonl", evaluation.rows, who)
    scores = [one for one in NAMES if one in SCORES[who]]

    def cell(one: Interval | None) -> str:
        if one is None:
            return "missing"
        mean = f"{10 * one.mean:.2f}"
        if one.low is None or one.high is None:
            return mean
        return f"{mean} ({10 * one.low:.2f} to {10 * one.high:.2f})"

    lines = table(evaluation.rows, who, evaluation.summary["bootstrap_samples"])
    rows = [
        [
            f"{line.origin or 'all'} {'' if line.level is None else f'C{line.level}'}".strip(),
            str(line.images),
            *(cell(line.means[score]) for score in scores),
        ]
        for line in lines
    ]
    click.echo(aligned([[f"by {who}", "images", *(NAMES[one] for one in scores)], *rows]))
    click.echo(f"{lines[-1].images} images, {lines[-1].missing} without a score")


VERBS = (complex_edit,)
