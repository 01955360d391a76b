"""The options that every verb which configures a run takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from atelier.config.variables import not_taken, taken

Verb = TypeVar("Verb", bound=Callable[..., Any])


class _NamedPath(click.Path):
    """A path, `~` being the home directory. Not an empty one, which an unset variable of a shell
    makes: it would be `.`."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("is empty; name a path, or leave the option out", param, ctx)
        return super().convert(os.path.expanduser(value), param, ctx)


PATH = _NamedPath(path_type=Path)


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
    type=PATH,
    help="File to read instead of the repository's params.yaml.",
)


variables_option = click.option(
    "--variables",
    "with_variables",
    is_flag=True,
    help="Also take settings from variables of DeepGen-RL's guide that are set here (`atelier "
    "variables` lists them); they rank above the recipe.",
)


def variables_taken(with_variables: bool) -> dict[str, str]:
    """Variables of the guide as settings, where that was asked for, and why others that are set are
    none; else says which it could be."""
    found = taken()
    if with_variables:
        for told in not_taken():
            click.echo(told, err=True)
        return found
    if found:
        click.echo(f"{', '.join(found)}: set, and not used without --variables", err=True)
    return {}
