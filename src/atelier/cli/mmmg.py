"""Verbs about MMMG, the benchmark of knowledge graphs in educational pictures."""

from __future__ import annotations

import click

from atelier.cli.evaluations import asked_evaluation

SCORES = ("mmmg", "official", "fidelity")


@click.group()
def mmmg() -> None:
    """MMMG: knowledge graphs in pictures."""


@mmmg.command()
@click.argument("name", metavar="FOLDER")
@click.option(
    "--score",
    type=click.Choice(SCORES),
    default="mmmg",
    show_default=True,
    help="mmmg: readability times fidelity by Dice; official: times the leaderboard's fidelity; "
    "fidelity: by Dice alone.",
)
@click.option(
    "--by",
    type=click.Choice(("judge", "gold")),
    help="Whose verdicts. Default: those of the evaluation's headline.",
)
def summary(name: str, score: str, by: str | None) -> None:
    """Scores of an evaluation by tier and discipline, times 100.

    FOLDER is that of an evaluation by the suite mmmg, or a run (its directory or id). Avg is the
    leaderboard's: the unweighted mean of the tiers' means.
    """
    from atelier.evaluation.suites.mmmg import WHO, require_rows, table_of
    from atelier.mmmg.benchmark import DISCIPLINES, TIERS, differences
    from atelier.mmmg.tables import Mean
    from atelier.report.text_tables import aligned

    asked = asked_evaluation(name, "mmmg", by, WHO)
    evaluation, who = asked.evaluation, asked.who
    require_rows(asked.folder / "scores.jsonl", evaluation.rows, f"{who}_{score}")
    found = table_of(evaluation.rows, f"{who}_{score}")

    def cell(one: Mean | None) -> str:
        return "" if one is None else "missing" if one.mean is None else f"{100 * one.mean:.2f}"

    rows = [
        [name, *(cell(found.cells.get((tier, name))) for tier in found.tiers), cell(mean)]
        for name, mean in found.disciplines.items()
    ]
    last = ["All", *map(cell, found.tiers.values()), cell(found.micro)]
    click.echo(aligned([[f"{who}_{score}", *found.tiers, "All"], *rows, last]))
    if found.leaderboard is not None:
        whole = sum(one.mean is not None for one in found.tiers.values())
        click.echo(f"Avg {found.leaderboard:.2f}, over {whole} of {len(TIERS)} tiers")
    click.echo(f"{found.micro.n} images, {found.micro.missing} without a score")
    if {*found.disciplines} & {*DISCIPLINES}:
        firsts = [one for one in evaluation.rows if one["number"] == 0]
        for told in differences((one["tier"], one["discipline"]) for one in firsts)[:1]:
            click.echo(f"Not all of MMMG: {told}")


VERBS = (mmmg,)
