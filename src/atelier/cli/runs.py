"""Verbs that run something. Everything heavy is imported when it is needed."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from pathlib import Path

import click

from atelier.cli.options import (
    PATH,
    configured,
    params_option,
    variables_option,
    variables_taken,
)
from atelier.cli.stopping import interruptible
from atelier.config.paths import from_root, is_directory, make_folder, repository_root
from atelier.config.plan import plan
from atelier.config.resolve import resolve, write_stage_configs
from atelier.config.sections.launch import LAST_MEETING_PORT, LaunchConfig
from atelier.config.variables import taken
from atelier.disk import stopped_when_full
from atelier.errors import ConfigError
from atelier.stages.console import show_logs
from atelier.stages.nodes.board import WAIT_SECONDS
from atelier.stages.nodes.first import require_first_node
from atelier.tracking.run_directory import STAGES, RunDirectory

DEMO_RECIPE = "tiny/flow-grpo-fast"


@click.command()
@configured
@variables_option
@click.option("--name", "run_name", metavar="TEXT", help="Name of the run in Prefect and MLflow.")
@click.option(
    "--resume",
    metavar="RUN",
    help="Run to go on with: its directory, or its id below runs/ or how that begins.",
)
def run(
    recipe: str | None,
    overrides: tuple[str, ...],
    with_variables: bool,
    run_name: str | None,
    resume: str | None,
) -> None:
    """Run the whole pipeline.

    prepare, baseline, train, evaluate, export, report: a stage that is done is skipped.
    """
    _run_pipeline(recipe, overrides, run_name, resume, variables_taken(with_variables))


@click.command()
@configured
def demo(recipe: str | None, overrides: tuple[str, ...]) -> None:
    """Run the pipeline on the embedded world.

    Minutes on a CPU, no download: trains, evaluates, exports and reports.
    """
    _run_pipeline(recipe or DEMO_RECIPE, overrides, "demo", None, {})


@click.command()
@click.argument("name", type=click.Choice(["resolve", *STAGES]))
@click.option(
    "--run",
    "folder",
    type=PATH,
    default=Path("outputs"),
    show_default=True,
    help="Run directory, relative to the repository.",
)
@configured
@params_option
def stage(
    name: str,
    folder: Path,
    recipe: str | None,
    overrides: tuple[str, ...],
    params_file: Path | None,
) -> None:
    """Run one stage, without Prefect.

    `resolve` writes the configuration of every stage; the others read theirs and nothing else.
    Progress goes to standard error, the result as JSON to standard output.
    """
    directory = RunDirectory(from_root(folder))
    if ignored := taken():
        names = ", ".join(ignored)
        click.echo(f"{names}: set, and read by no stage: use params.yaml", err=True)
    _refuse_repository(directory)
    if name == "resolve":
        config = resolve(recipe, overrides, params_file)
        require_first_node(config)
        for text in plan(config).warnings:
            click.echo(f"warning: {text}", err=True)
        with stopped_when_full(directory.root):
            make_folder(directory.root, "--run")
            digests = write_stage_configs(config, directory)
        click.echo(json.dumps(digests, indent=2))
        return
    if recipe is not None or overrides or params_file is not None:
        raise ConfigError(
            f"stage {name} reads {directory.config(name)} and nothing else; "
            "change the configuration with `atelier stage resolve`"
        )
    if not is_directory(directory.root):
        raise ConfigError(
            f"--run {directory.root}: no such folder; `atelier stage resolve` makes one"
        )
    make_folder(directory.root, "--run")
    with interruptible(shlex.join(["atelier", "stage", name, "--run", str(folder)])):
        module = importlib.import_module(f"atelier.stages.{name}")
        show_logs(sys.stderr)
        summary = module.run(directory)
    click.echo(json.dumps(summary, indent=2, default=str))


@click.command()
@click.argument("name", metavar="PATH")
@click.option("--base", metavar="PATH", help="Model an adapter is loaded into.")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True
)
def verify(name: str, base: str | None, device: str) -> None:
    """Prove an export by reloading it.

    PATH is a run (its directory or id), or an exported directory wherever it lies. Checks manifest
    and keys, and compares in a clean process what it generates.
    """
    from atelier.export.there import require_there
    from atelier.stages.find_run import find_path

    if not name:
        raise click.UsageError("PATH is empty; name a run or an exported directory")
    path = find_path(name)
    require_there(path)
    from atelier.export.verify import verify as verify_export

    click.echo("Reloading in a clean process; a minute or less.", err=True)
    click.echo(verify_export(path, base=base, device=device).describe())


def _refuse_repository(directory: RunDirectory) -> None:
    """A stage moves the folder aside that it does not know: there, the repository's data/."""
    root = repository_root()
    if directory.root.resolve() == root:
        raise ConfigError(f"--run {root}: that is the repository itself; name a folder of its own")


def _run_pipeline(
    recipe: str | None,
    overrides: tuple[str, ...],
    run_name: str | None,
    resume: str | None,
    variables: dict[str, str],
) -> None:
    from flows.command_line import run_pipeline

    sys.exit(run_pipeline(recipe, overrides, run_name, resume, variables))


@click.command()
@click.option("--address", required=True, metavar="HOST", help="Node 0's launch.master_address.")
@click.option(
    "--port",
    type=click.IntRange(1, LAST_MEETING_PORT),
    default=LaunchConfig().master_port,
    show_default=True,
    help="Its launch.master_port.",
)
@click.option(
    "--rank", type=click.IntRange(min=1), help="Which node this is. Default: one that is missing."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=WAIT_SECONDS,
    metavar="SECONDS",
    show_default=True,
    help="How long node 0 may take until it trains.",
)
def node(address: str, port: int, rank: int | None, wait: float) -> None:
    """Help a run of another machine to train.

    Waits until node 0 trains, computes with it, and ends with it. What it trains is in the run's
    directory, which all nodes share.
    """
    from flows.command_line import run_node

    sys.exit(run_node(address, port, rank, wait))


VERBS = (run, demo, stage, node, verify)
