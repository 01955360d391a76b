"""Verbs about rewards as services."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import click

from atelier.cli.options import PATH, configured, params_option
from atelier.config.resolve import resolve


@click.group()
def rewards() -> None:
    """Serve rewards to several runs."""


@rewards.command()
@configured
@params_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option("--port", default=8400, show_default=True, type=click.IntRange(1, 65535))
@click.option(
    "--folder",
    type=PATH,
    help="For log and records, relative to the repository. Default: .atelier/rewards/PORT.",
)
def serve(
    recipe: str | None,
    overrides: tuple[str, ...],
    params_file: Path | None,
    host: str,
    port: int,
    folder: Path | None,
) -> None:
    """Serve the rewards of a configuration until Ctrl-C.

    Runs use them with `rewards.NAME.placement=remote` and `rewards.NAME.urls`. They must show the
    token that ATELIER_REWARD_TOKEN holds here, if it is set; beyond loopback it has to be.
    """
    from atelier.stages.servers.shared import serve as serve_rewards

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    config = resolve(recipe, overrides, params_file)
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    names = ", ".join(config.rewards.sections())
    folder = folder or Path(".atelier") / "rewards" / str(port)
    serve_rewards(
        config,
        folder,
        host,
        port,
        stop.is_set,
        lambda url: click.echo(f"{names} at {url}; log in {folder}; Ctrl-C stops"),
    )


VERBS = (rewards,)
