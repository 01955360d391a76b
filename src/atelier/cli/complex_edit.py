"""Verbs about Complex-Edit, the benchmark of instructions that ask for several edits."""

from __future__ import annotations

import click

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
    from atelier.errors import DataError
    from atelier.evaluation.files import read_evaluation
    from atelier.evaluation.statistics import Interval
    from atelier.evaluation.suites.complex_edit import SCORES, require_rows, table
    from atelier.legible import legible, legible_value
    from atelier.report.text_tables import aligned
    from atelier.stages.find_run import find_evaluation

    if not name:
        raise click.UsageError("FOLDER is empty; name an evaluation or a run")
    folder = find_evaluation(name)
    evaluation = read_evaluation(folder)
    suite = evaluation.summary.get("suite")
    if suite != "complex_edit":
        raise DataError(
            f"{folder}: an evaluation by the suite {legible(str(suite))}, not complex_edit"
        )
    headline = evaluation.summary.get("headline", "")
    who = by or headline.partition("_")[0]
    if who not in SCORES:
        raise DataError(
            f"{folder}: no headline of this suite: {legible_value(headline)}; give --by"
        )
    require_rows(folder / "scores.jsonl", evaluation.rows, who)
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
