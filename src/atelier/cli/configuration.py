"""Verbs that look at a configuration and start nothing."""

from __future__ import annotations

import json
from pathlib import Path

import click

from atelier.cli.options import configured, params_option, variables_option, variables_taken
from atelier.cli.plan_output import plan_output
from atelier.config.device_batch import device_batch_overrides
from atelier.config.digest import stage_digest
from atelier.config.recipes import recipe_names, recipe_summary, recipes_directory
from atelier.config.resolve import resolve
from atelier.config.variables import VARIABLES, taken
from atelier.config.yaml_files import dump_yaml

SHARED = "What "  # begins what is said of a file that is no recipe by itself


@click.command()
def recipes() -> None:
    """List the recipes, and behind them what they inherit."""
    directory = recipes_directory()
    told = {name: recipe_summary(directory / f"{name}.yaml") for name in recipe_names(directory)}
    width = max(map(len, told), default=0)
    shared = {name for name, summary in told.items() if summary.startswith(SHARED)}
    for name in (one for one in told if one not in shared):
        click.echo(f"{name:<{width}}  {told[name]}")
    click.echo("\nTo inherit from in recipes of your own (inherits: NAME):")
    for name in sorted(shared):
        click.echo(f"{name:<{width}}  {told[name]}")


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
    variables = variables_taken(with_variables)
    config = resolve(recipe, overrides, params_file, variables=variables)
    if per_device is None and accumulation is not None:
        raise click.UsageError("--accumulation says something beside --per-device only")
    if per_device is not None:
        found = device_batch_overrides(config, per_device, accumulation or 1)
        click.echo(" ".join(f"--set {one}" for one in found))
        config = resolve(recipe, (*overrides, *found), params_file, variables=variables)
    output = plan_output(config, gpu_gib)
    click.echo(output.text)
    for warning in output.warnings:
        click.echo(warning, err=True)


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


VERBS = (recipes, show, validate, plan, variables)
