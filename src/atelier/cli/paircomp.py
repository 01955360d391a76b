"""Verbs about PairComp, the benchmark of captions that differ in one thing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atelier.cli.options import PATH
from atelier.config.paths import is_file
from atelier.errors import DataError

if TYPE_CHECKING:
    from atelier.evaluation.score_files import CategoryMeans

OF_AN_EVALUATION = ("scores.jsonl", "paircomp.json")  # what one holds its scores in


@click.group()
def paircomp() -> None:
    """PairComp: captions that differ in one thing."""


@paircomp.command()
@click.argument("scores", metavar="SCORES")
@click.option(
    "--pairs",
    type=PATH,
    metavar="FILE",
    help="PairComp.json, for the category of each pair of a score file. Without it all pairs are "
    "one.",
)
def summary(scores: str, pairs: Path | None) -> None:
    """Arithmetic and geometric means, a category and over all.

    SCORES is what PairComp's evaluate_images.py writes, the folder of an evaluation, or a run (its
    directory or id); an evaluation knows its categories. The last line is the unweighted mean of
    the categories.
    """
    from atelier.evaluation.score_files import category_means
    from atelier.evaluation.statistics import Interval
    from atelier.report.text_tables import aligned, interval

    if not scores:
        raise click.UsageError("SCORES is empty; name a score file, an evaluation or a run")
    file = Path(scores)
    found = _of_file(file, pairs) if is_file(file) else _of_evaluation(scores, pairs)

    def cell(one: Interval | None) -> str:
        if one is None:
            return "missing"
        return f"{one.mean:.3f} ({interval(one.low, one.high, sign=False)})"

    header = ("Category", "arithmetic mean (95 %)", "geometric mean (95 %)", "pairs")
    means = category_means(**found)
    rows = [
        (one.category or "All", cell(one.arithmetic), cell(one.geometric), _count(one))
        for one in means
    ]
    click.echo(aligned([header, *rows]))
    _warn(means)


def _of_evaluation(name: str, pairs: Path | None) -> dict[str, Any]:
    """What `category_means` needs of an evaluation."""
    from atelier.evaluation.files import read_evaluation
    from atelier.stages.find_run import find_evaluation

    folder = find_evaluation(name)
    if pairs is not None:
        raise click.UsageError("--pairs is for a score file: an evaluation knows its categories")
    evaluation = read_evaluation(folder)
    suite = evaluation.summary.get("suite")
    if suite != "paircomp":
        raise DataError(f"{folder}: an evaluation by the suite {suite}, not paircomp")
    return {
        "rows": evaluation.rows,
        "samples": evaluation.summary["bootstrap_samples"],
        "who": evaluation.summary["headline"].partition("_")[0],
    }


def _of_file(path: Path, pairs: Path | None) -> dict[str, Any]:
    """The same of a score file; of one that lies in an evaluation, what that knows."""
    from atelier.data.readers.paircomp import read
    from atelier.evaluation.score_files import read_score_file

    if pairs is None and path.name in OF_AN_EVALUATION and is_file(path.parent / "summary.json"):
        return _of_evaluation(str(path.parent), None)
    if pairs is None:
        click.echo(
            "All pairs count as one category; PairComp's mean is over categories: name its "
            "PairComp.json in --pairs.",
            err=True,
        )
        return {"rows": read_score_file(path)}
    categories = {one.metadata["pair"]: one.metadata["category"] for one in read(pairs)}
    return {"rows": read_score_file(path, categories), "there": categories}


def _count(one: CategoryMeans) -> str:
    """How many pairs the means are over, and of how many where these are more."""
    scored = 0 if one.arithmetic is None else one.arithmetic.n
    return str(scored) if scored == one.pairs else f"{scored} of {one.pairs}"


def _warn(means: Sequence[CategoryMeans]) -> None:
    *categories, whole = means
    without = ", ".join(one.category or "" for one in categories if one.arithmetic is None)
    if without:
        click.echo(f"warning: no pair of {without} has a score, so All has none", err=True)
    elif whole.arithmetic is not None and (lacking := whole.pairs - whole.arithmetic.n):
        click.echo(f"warning: {lacking} of {whole.pairs} pairs have no score", err=True)


VERBS = (paircomp,)
