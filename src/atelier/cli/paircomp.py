"""Verbs about PairComp, the benchmark of captions that differ in one thing."""

from __future__ import annotations

from pathlib import Path

import click

from atelier.cli.options import PATH


@click.group()
def paircomp() -> None:
    """PairComp: captions that differ in one thing."""


@paircomp.command()
@click.argument("scores", type=PATH, metavar="SCORES")
@click.option(
    "--pairs",
    type=PATH,
    metavar="FILE",
    help="PairComp.json, for the category of each pair. Without it all pairs are one.",
)
def summary(scores: Path, pairs: Path | None) -> None:
    """Arithmetic and geometric means of a score file, a category and over all.

    SCORES is what PairComp's evaluate_images.py writes, or the paircomp.json of an evaluation. The
    last line is the unweighted mean of the categories.
    """
    from atelier.data.readers.paircomp import read
    from atelier.evaluation.score_files import category_means, read_score_file
    from atelier.evaluation.statistics import Interval
    from atelier.report.text_tables import aligned, interval

    categories = None
    if pairs is not None:
        categories = {one.metadata["pair"]: one.metadata["category"] for one in read(pairs)}

    def cell(one: Interval) -> str:
        return f"{one.mean:.3f} ({interval(one.low, one.high, sign=False)})"

    header = ("Category", "arithmetic mean (95 %)", "geometric mean (95 %)", "pairs")
    rows = [
        (one.category or "All", cell(one.arithmetic), cell(one.geometric), str(one.arithmetic.n))
        for one in category_means(read_score_file(scores, categories))
    ]
    click.echo(aligned([header, *rows]))


VERBS = (paircomp,)
