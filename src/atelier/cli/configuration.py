"""Verbs that look at a configuration and start nothing."""

from __future__ import annotations

import json
from pathlib import Path

import click

from atelier.cli.options import configured, params_option, variables_option, variables_taken
from atelier.cli.tables import plan_table
from atelier.config.device_batch import device_batch_overrides
from atelier.config.digest import stage_digest
from atelier.config.memory_advice import fitting
from atelier.config.paths import repository_root
from atelier.config.recipes import recipe_names, recipe_summary, recipes_directory
from atelier.config.reference import reference
from atelier.config.resolve import resolve
from atelier.config.variables import VARIABLES, taken
from atelier.config.yaml_files import dump_yaml
from atelier.errors import ConfigError


@click.command()
def recipes() -> None:
    """List the recipes."""
    directory = recipes_directory()
    names = recipe_names(directory)
    width = max(map(len, names), default=0)
    for name in names:
        summary = recipe_summary(directory / f"{name}.yaml")
        click.echo(f"{name:<{width}}  {summary}")


@click.command()
@configured
@params_option
@variables_option
def show(
    recipe: str | None,
    overrides: tuple[str, ...],
    params_file: Path | None,
    with_variables: bool,
) -> None:
    """Print the resolved configuration."""
    variables = variables_taken(with_variables)
    config = resolve(recipe, overrides, params_file, variables=variables)
    click.echo(dump_yaml(config.model_dump(mode="json")), nl=False)


@click.command()
@configured
@params_option
@variables_option
def validate(
    recipe: str | None,
    overrides: tuple[str, ...],
    params_file: Path | None,
    with_variables: bool,
) -> None:
    """Check keys, types and values."""
    variables = variables_taken(with_variables)
    config = resolve(recipe, overrides, params_file, variables=variables)
    digest = stage_digest(config, "train")
    click.echo(
        f"valid: {config.recipe or 'defaults, no recipe'} (train digest {digest[:12]}); "
        "whether it can work, `atelier plan` says"
    )


@click.command()
@configured
@params_option
@variables_option
@click.option(
    "--gpu-gib",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Say whether it fits a GPU of N GiB, and which settings make it fit.",
)
@click.option(
    "--per-device",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of a step whose processes hold N samples at once, find the settings.",
)
@click.option(
    "--accumulation",
    type=click.IntRange(min=1),
    metavar="M",
    help="With --per-device: M such batches of a process make an update; default 1.",
)
def plan(
    recipe: str | None,
    overrides: tuple[str, ...],
    params_file: Path | None,
    with_variables: bool,
    gpu_gib: float | None,
    per_device: int | None,
    accumulation: int | None,
) -> None:
    """Work out batches, passes and memory.

    A run that cannot work is refused with every reason (exit code 3). Prompt files that are here
    are read.
    """
    from atelier.stages.prompts_here import planned, prompt_warnings

    variables = variables_taken(with_variables)
    config = resolve(recipe, overrides, params_file, variables=variables)
    if per_device is None and accumulation is not None:
        raise click.UsageError("--accumulation says something beside --per-device only")
    if per_device is not None:
        found = device_batch_overrides(config, per_device, accumulation or 1)
        click.echo(" ".join(f"--set {one}" for one in found))
        config = resolve(recipe, (*overrides, *found), params_file, variables=variables)
    made, prompts = planned(config)
    click.echo(plan_table(made, prompts))
    if gpu_gib is not None:
        click.echo("\n".join(fitting(config, gpu_gib)))
    for warning in (*made.warnings, *(prompt_warnings(config, prompts) if prompts else ())):
        click.echo(f"warning: {warning}", err=True)


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Those that are set, as a deployment takes them."
)
def variables(as_json: bool) -> None:
    """List the variables of DeepGen-RL's guide.

    With the key each stands for, and whether it is set here. They count where `--variables` asks
    for them, and in `prefect deployment run grpo/full --param variables="$(atelier variables
    --json)"`.
    """
    if as_json:
        click.echo(json.dumps(variables_taken(with_variables=True)))
        return
    width = max(len(one.name) for one in VARIABLES)
    found = taken()
    for one in VARIABLES:
        mark = "*" if found.keys() & {one.name, *one.instead} else " "
        click.echo(f"{mark} {one.name:<{width}}  {', '.join(one.keys) or f'none: {one.why}'}")
    click.echo("* is set here")


@click.group()
def docs() -> None:
    """Generate pages from the code."""


@docs.command("configuration")
@click.option("--write", is_flag=True, help="Write docs/configuration.md.")
@click.option("--check", is_flag=True, help="Fail unless docs/configuration.md is current.")
def docs_configuration(write: bool, check: bool) -> None:
    """The configuration reference."""
    page = repository_root() / "docs" / "configuration.md"
    if write:
        page.write_text(reference(), encoding="utf-8")
    elif check:
        if not page.is_file() or page.read_text(encoding="utf-8") != reference():
            raise ConfigError(
                "docs/configuration.md is not what the schema says; "
                "run `atelier docs configuration --write`"
            )
    else:
        click.echo(reference(), nl=False)


VERBS = (recipes, show, validate, plan, variables, docs)
