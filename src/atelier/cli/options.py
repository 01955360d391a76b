"""The options that every verb which configures a run takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Verb = TypeVar("Verb", bound=Callable[..., Any])


def configured(verb: Verb) -> Verb:
    """Give `verb` the arguments `recipe` (a name or None) and `overrides` (a tuple)."""
    recipe = click.option(
        "--recipe",
        metavar="NAME",
        help="Recipe to start from (`atelier recipes` lists them), or the path of a YAML file. "
        "Default: the one params.yaml names.",
    )
    override = click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="Override one value, such as rollout.group_size=24; repeat for more.",
    )
    return recipe(override(verb))


params_option = click.option(
    "--params",
    "params_file",
    type=click.Path(path_type=Path),
    help="File to read instead of the repository's params.yaml.",
)
