"""Verbs that generate pages from the code."""

from __future__ import annotations

from pathlib import Path

import click

from atelier.cli.plan_page import with_example
from atelier.config.paths import repository_root
from atelier.config.reference import reference
from atelier.errors import ConfigError


@click.group()
def docs() -> None:
    """Generate pages from the code."""


@docs.command("configuration")
@click.option("--write", is_flag=True, help="Write docs/configuration.md.")
@click.option("--check", is_flag=True, help="Fail unless docs/configuration.md is current.")
def docs_configuration(write: bool, check: bool) -> None:
    """The configuration reference."""
    _generate(_page("configuration.md"), reference(), write, check)


@docs.command("plan")
@click.option("--write", is_flag=True, help="Write the example into docs/plan.md.")
@click.option("--check", is_flag=True, help="Fail unless the example of docs/plan.md is current.")
def docs_plan(write: bool, check: bool) -> None:
    """How to read a plan."""
    page = _page("plan.md")
    _generate(page, with_example(page.read_text(encoding="utf-8")), write, check)


def _page(name: str) -> Path:
    return repository_root() / "docs" / name


def _generate(page: Path, text: str, write: bool, check: bool) -> None:
    if write:
        page.write_text(text, encoding="utf-8")
    elif check:
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"docs/{page.name} is not what the code says; "
                f"run `atelier docs {page.stem} --write`"
            )
    else:
        click.echo(text, nl=False)


VERBS = (docs,)
