"""Verbs about this machine and its environments."""

from __future__ import annotations

import sys

import click

from atelier.config.paths import repository_root
from atelier.environments import DECLARED
from atelier.environments import environment as find_environment


@click.command()
def doctor() -> None:
    """Check what this machine has.

    Versions, GPUs, ports, paths, disk, environments; exit code 2 when a run cannot work here.
    """
    from atelier.config.doctor import checks

    failed = 0
    for check in checks():
        failed += check.status == "fail"
        click.echo(f"{check.status:<4}  {check.name:<18}  {check.detail}")
    if failed:
        click.echo(f"{failed} check(s) failed; `make setup` renews .venv", err=True)
        sys.exit(2)


@click.group()
def environments() -> None:
    """Make environments for servers.

    For those whose packages exclude the pipeline's, such as vLLM.
    """


@environments.command("list")
def environments_list() -> None:
    """Say which are declared and whether they are created."""
    for name in DECLARED:
        found = find_environment(name, repository_root())
        click.echo(f"{name}  {found.state()}  {found.variant or ''}".rstrip())


@environments.command("create")
@click.argument("name", type=click.Choice(list(DECLARED)))
@click.option("--cpu", is_flag=True, help="The variant for machines without a GPU.")
def environments_create(name: str, cpu: bool) -> None:
    """Create or renew NAME; does nothing when it is current."""
    python = find_environment(name, repository_root()).create("cpu" if cpu else "gpu")
    click.echo(str(python))


VERBS = (doctor, environments)
