"""The command line. Verbs import what they run when they run it, so that help answers at once."""

from __future__ import annotations

import sys

import click

from atelier import telemetry
from atelier.cli.application import application
from atelier.errors import AtelierError


def main() -> None:
    """Run the command line; errors a user can meet end with their message and exit code."""
    telemetry.off_by_default()
    try:
        application(prog_name="atelier")
    except AtelierError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
