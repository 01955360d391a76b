"""Verbs that start and stop the platform: Prefect server, worker and MLflow UI."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--gpu-slots",
    type=click.IntRange(0, 1024),
    metavar="N",
    help="Jobs that may want a GPU at the same time. Default: as set before, at first the number "
    "of GPUs (1 where there is none).",
)
def up(gpu_slots: int | None) -> None:
    """Start the platform in the background.

    Prefect server and UI, a worker, MLflow UI; registers the deployments. Done again, it brings
    them up to date.
    """
    from flows.local_platform.up import up as start

    start(gpu_slots, click.echo)


@click.command()
@click.option("--force", is_flag=True, help="Stop flow runs that are running; they are resumable.")
def down(force: bool) -> None:
    """Stop the platform.

    Refuses while flow runs are running, unless forced.
    """
    from flows.local_platform.down import down as stop

    stop(force, click.echo)


VERBS = (up, down)
