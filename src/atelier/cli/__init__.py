"""The command line. Verbs import what they run when they run it, so that help answers at once."""

from __future__ import annotations

import sys

import click

from atelier import telemetry
from atelier.cli.stopping import Interrupted, interruptible, terminable
from atelier.errors import AtelierError


def main() -> None:
    """Run the command line; errors a user can meet end with their message and exit code."""
    telemetry.off_by_default()
    try:
        with terminable(), interruptible():
            # Here, because all verbs take most of a second, in which Ctrl-C may come.
            from atelier.cli.application import application

            application(prog_name="atelier")
    except AtelierError as error:
        kind = "" if isinstance(error, Interrupted) else "error: "
        click.echo(f"{kind}{error}", err=True)
        sys.exit(error.exit_code)
