"""The verb that makes room."""

from __future__ import annotations

import math
import sys
from datetime import timedelta

import click

from atelier.errors import ConfigError


@click.command()
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Whole runs but the newest N."
)
@click.option(
    "--older-than",
    type=click.FloatRange(0, 36500),
    metavar="DAYS",
    help="Whole runs unused for so long; with --keep, only those that both would take.",
)
@click.option(
    "--checkpoints",
    is_flag=True,
    help="Checkpoints of finished runs, but the newest and what was exported.",
)
@click.option(
    "--leftovers",
    is_flag=True,
    help="Stages moved aside, images of earlier evaluations, files of killed processes.",
)
@click.option(
    "--apply", "really", is_flag=True, help="Do it. Without, only what would go is shown."
)
def prune(
    keep: int | None, older_than: float | None, checkpoints: bool, leftovers: bool, really: bool
) -> None:
    """Free disk space: show what would go, and with --apply remove it.

    Without a choice, shows what each one would free. Runs that are being written are left alone,
    and links are not followed. Reports, scores and exports stay with their runs.
    """
    from atelier.cli.tables import removal_table
    from atelier.retention.applying import apply, finish_earlier
    from atelier.retention.removals import Choice, removals
    from atelier.retention.survey import survey
    from atelier.stages.run_file import runs_root, shown_path

    if older_than is not None and math.isnan(older_than):
        raise click.BadParameter("nan is no number of days", param_hint="--older-than")
    days = None if older_than is None else timedelta(days=older_than)
    choice = Choice(keep, days, checkpoints, leftovers)
    if really and choice.is_empty:
        raise ConfigError(
            "--apply: say what: --keep N, --older-than DAYS, --checkpoints, --leftovers"
        )
    root = runs_root()
    runs, others = survey(root)
    wanted = Choice(checkpoints=True, leftovers=True) if choice.is_empty else choice
    found = removals(runs, wanted)
    click.echo(removal_table(runs, found) if runs else f"no runs in {shown_path(root)}")
    for line in others:
        click.echo(f"note: {line}", err=True)
    if not really:
        click.echo("\nNothing was removed; --apply does it." if found else "\nNothing would go.")
        return
    finish_earlier(root)
    lines = list(apply(found))
    click.echo("\n".join(["", *lines]))
    sys.exit(1 if any(line.startswith("kept") for line in lines) else 0)


VERBS = (prune,)
