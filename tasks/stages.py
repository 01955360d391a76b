"""One task a stage. A stage that is done is skipped, so a retried task goes on where it was."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.runtime import flow_run

from atelier.errors import AtelierError
from atelier.stages.find_run import find_run
from atelier.stages.run_file import open_run as open_run_directory
from atelier.stages.run_file import warnings_of
from atelier.tracking.run_directory import RunDirectory
from tasks import output
from tasks.dataset import prepared_data
from tasks.outcome import can_be_retried, failed, resume_command, value_of

logger = logging.getLogger("atelier.flow")


def _resolve(
    recipe: str | None,
    overrides: list[str],
    run_name: str | None,
    resume: str | None,
    variables: dict[str, str] | None,
) -> Any:
    try:
        run = open_run_directory(recipe, overrides, run_name, resume, str(flow_run.id), variables)
    except AtelierError as error:
        return failed(error)
    return run.root


def open_run(
    recipe: str | None,
    overrides: list[str],
    run_name: str | None,
    resume: str | None,
    variables: dict[str, str] | None = None,
) -> Path:
    """Make or find the run's directory, with one resolved configuration a stage.

    Raises:
        ConfigError, PlanError: the configuration cannot be used.
    """
    resolve = Task(_resolve, name="resolve", task_run_name="resolve")
    run = Path(value_of(resolve(recipe, overrides, run_name, resume, variables, return_state=True)))
    output.to_file(run)
    logger.info("run %s (should it stop, `%s` goes on with it)", run.name, resume_command())
    for text in warnings_of(RunDirectory(run)):
        logger.warning("warning: %s", text)
    return run


def existing_run(name: str) -> Path:
    """The directory of a run that was opened before.

    Raises:
        ConfigError: there is none of that name.
    """
    run = find_run(name).root
    output.to_file(run)
    return run


def _no_arguments(run: RunDirectory) -> dict[str, Any]:
    return {}


def _stage_task(
    name: str, arguments: Callable[[RunDirectory], dict[str, Any]] = _no_arguments
) -> Callable[[Path], dict[str, Any]]:
    def run_stage(run: Path) -> Any:
        stage = importlib.import_module(f"atelier.stages.{name}")
        try:
            return stage.run(RunDirectory(run), **arguments(RunDirectory(run)))
        except AtelierError as error:
            return failed(error)

    task = Task(
        run_stage,
        name=name,
        task_run_name=name,
        retries=1,
        retry_delay_seconds=2,
        retry_condition_fn=can_be_retried,
    )

    def call(run: Path) -> dict[str, Any]:
        """Run the stage and return its summary; its error is raised here, in the flow."""
        return dict(value_of(task(run, return_state=True)))

    return call


prepare = _stage_task("prepare", lambda run: {"prepared": prepared_data(run)})
baseline = _stage_task("baseline")
train = _stage_task("train")
evaluate = _stage_task("evaluate")
export = _stage_task("export")
report = _stage_task("report")
