"""Verbs about judges."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from atelier.cli.options import PATH
from atelier.config.paths import from_root


@click.group()
def judge() -> None:
    """Ask vision-language models about images."""


@judge.command()
@click.option(
    "--folder",
    type=PATH,
    default=Path("outputs/judge-demo"),
    show_default=True,
    help="For grid.png, answers.json and the server's log, relative to the repository.",
)
def demo(folder: Path) -> None:
    """Judge pictures of the embedded generator with the embedded judge, served by a real vLLM.

    The first time it installs vLLM for the CPU, some GB, in an environment of its own.
    """
    from atelier.stages import judge_demo, quiet
    from atelier.stages.console import show_logs

    quiet.libraries_by_default()
    show_logs(sys.stdout)
    grid = judge_demo.run(from_root(folder))
    click.echo(f"the pictures with what the judge says: {grid}")


VERBS = (judge,)
