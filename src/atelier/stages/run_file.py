"""run.json: what a run is, written by whoever starts it first and kept for its whole life."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atelier.config.digest import stage_digest
from atelier.config.nodes_token import board_token
from atelier.config.paths import make_folder, repository_root, runs_root
from atelier.config.plan import plan
from atelier.config.resolve import load_stage_config, resolve, write_stage_configs
from atelier.config.schema import RunConfig
from atelier.config.variables import joined
from atelier.disk import stopped_when_full
from atelier.errors import DataError
from atelier.stages.find_run import find_run
from atelier.stages.nodes.first import require_first_node
from atelier.stages.prompts_here import planned, prompt_warnings, prompts_here
from atelier.tracking.run_directory import (
    FORMAT,
    STAGES,
    RunDirectory,
    read_run_file,
    write_json,
)
from atelier.tracking.run_file import changing_run_file, note_in_run_file

_opened: list[RunDirectory] = []


def opened_run() -> RunDirectory | None:
    """The run that this process opened last, for who has to say how it goes on."""
    return _opened[-1] if _opened else None


def shown_path(path: Path) -> str:
    """A path for people on any machine: relative to the repository, or to where runs are kept.

    Logs and artifacts hold it, and those may leave this machine.
    """
    for root in (repository_root(), runs_root().parent):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.name


def write_run(
    run: RunDirectory,
    config: RunConfig,
    overrides: Sequence[str] | None = None,
    flow_run_id: str | None = None,
    warnings: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Create run.json, or bring the digests and code of an existing one up to date.

    Args:
        warnings: the plan's; None keeps what stands there.
        variables: of a guide, that values were taken from, beside those that stand there.
    """
    git = _git()
    with changing_run_file(run):
        before = read_run(run) if run.run_file.exists() else {}
        value = _described(before, config, git)
        value |= {
            "id": before.get("id") or flow_run_id or str(uuid.uuid4()),
            "flow_run_id": flow_run_id or before.get("flow_run_id"),
            "overrides": list(before.get("overrides", []) if overrides is None else overrides),
            "variables": joined(before.get("variables", {}), variables or {}),
            "warnings": list(before.get("warnings", []) if warnings is None else warnings),
        }
        write_json(run.run_file, value)
    return value


def _described(
    before: Mapping[str, Any], config: RunConfig, git: Mapping[str, Any]
) -> dict[str, Any]:
    """What follows from the configuration and the code, and what stands there of the run."""
    digests = {stage: stage_digest(config, stage) for stage in STAGES}
    same_data = before.get("digests", {}).get("prepare") == digests["prepare"]
    return {
        "format": FORMAT,
        "mlflow_run_id": before.get("mlflow_run_id"),
        "created": before.get("created") or datetime.now(UTC).isoformat(timespec="seconds"),
        "recipe": config.recipe,
        "run_name": config.tracking.run_name
        or f"{config.recipe or 'run'} seed {config.train.seed}",
        "seed": config.train.seed,
        "digests": digests,
        "data": before.get("data") if same_data else None,
        "git": git,
    }


def write_data(run: RunDirectory, md5: Mapping[str, str], dvc: str | None) -> None:
    """Note in run.json which data the run has.

    Args:
        md5: by file name, as DVC hashes.
        dvc: the .dvc file that tracks them, relative to the repository.
    """
    note_in_run_file(run, data={"md5": dict(md5), "dvc": dvc})


def ensure_run(run: RunDirectory, config: RunConfig) -> None:
    """Write run.json where no flow did (DVC, `atelier stage`), or where the digests changed."""
    digests = {stage: stage_digest(config, stage) for stage in STAGES}
    if not run.run_file.exists() or read_run(run)["digests"] != digests:
        write_run(run, config)


def open_run(
    recipe: str | None,
    overrides: Sequence[str],
    run_name: str | None,
    resume: str | None,
    flow_run_id: str,
    variables: Mapping[str, str] | None = None,
) -> RunDirectory:
    """A new run under runs/<flow run id>/, or an existing one to go on with.

    An existing run keeps its resolved configuration, whatever params.yaml says by now. Resuming it
    with a recipe, overrides or variables resolves it again, on top of what it was started with.

    Raises:
        ConfigError, DataError, PlanError: the configuration or its prompts cannot be used; nothing
            was written.
        Stopped: the disk is full.
    """
    run = find_run(resume) if resume is not None else RunDirectory(runs_root() / flow_run_id)
    exists = run.run_file.exists()
    if exists and resume is None:  # a retried flow run
        recipe, overrides, run_name, variables = None, [], None, None
    known = run if exists else None
    config, settled = _configuration(known, recipe, overrides, run_name, variables)
    require_first_node(config)
    board_token(config.launch)
    warnings = None if settled is None else plan_warnings(config)
    with stopped_when_full(run.root):
        if resume is None:
            make_folder(runs_root(), "ATELIER_RUNS")
        if settled is not None:
            write_stage_configs(config, run)
        write_run(run, config, settled, flow_run_id, warnings, variables)
    _opened.append(run)
    return run


def plan_warnings(config: RunConfig) -> list[str]:
    """What `atelier plan` warns of.

    Raises:
        DataError, PlanError: the run cannot work, or its prompts cannot be read.
    """
    made, prompts = planned(config)
    return [*made.warnings, *(prompt_warnings(config, prompts) if prompts else ())]


def check_opening(
    recipe: str | None,
    overrides: Sequence[str],
    run_name: str | None,
    resume: str | None,
    variables: Mapping[str, str] | None = None,
) -> RunConfig:
    """Refuse what `open_run` would refuse, and prompts that `prepare` would; write nothing.

    Returns:
        The configuration it would have.

    Raises:
        ConfigError, DataError, PlanError: there is no such run, or it cannot be configured so.
    """
    run = None if resume is None else find_run(resume)
    config, settled = _configuration(run, recipe, overrides, run_name, variables)
    board_token(config.launch)
    if settled is not None:
        prompts_here(config)
    return config


def _configuration(
    run: RunDirectory | None,
    recipe: str | None,
    overrides: Sequence[str],
    run_name: str | None,
    variables: Mapping[str, str] | None,
) -> tuple[RunConfig, list[str] | None]:
    """The configuration of a new or existing run, and the overrides in it.

    None in their place: nothing is asked of an existing run but to go on, so it keeps its own.
    """
    kept: list[str] = []
    named = None
    if run is not None:
        before = read_run(run)
        if not (recipe or overrides or variables):
            config = load_stage_config(run.config("report"))
            return (_named(config, run_name), before["overrides"]) if run_name else (config, None)
        named = load_stage_config(run.config("report")).tracking.run_name
        kept = _without_old_services(before["overrides"], overrides)
        recipe = recipe or before["recipe"]
        variables = joined(before.get("variables", {}), variables or {})
    settings = [*kept, *_naming(named), *overrides, *_naming(run_name)]
    config = resolve(recipe, settings, variables=variables)
    plan(config)
    return config, [*kept, *overrides]


def _naming(run_name: str | None) -> list[str]:
    return [f"tracking.run_name={json.dumps(run_name)}"] if run_name else []


def _without_old_services(before: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """What a run was started with, less what belongs to a reward's placement that is now another:
    `urls` of remote services, `replicas` of managed ones."""
    gone = set()
    for one in overrides:
        key, _, value = one.partition("=")
        reward, _, field = key.strip().rpartition(".")
        if field == "placement":
            gone |= {f"{reward}.urls"} if value.strip() != "remote" else set()
            gone |= {f"{reward}.replicas"} if value.strip() != "managed" else set()
    return [one for one in before if one.partition("=")[0].strip() not in gone]


def _named(config: RunConfig, name: str) -> RunConfig:
    tracking = config.tracking.model_copy(update={"run_name": name})
    return config.model_copy(update={"tracking": tracking})


def read_run(run: RunDirectory) -> dict[str, Any]:
    """run.json.

    Raises:
        DataError: it is missing, not what `write_run` writes, or of a newer format.
    """
    value = read_run_file(run)
    overrides = value.get("overrides")
    if not (
        isinstance(value.get("digests"), dict)
        and isinstance(value.get("recipe"), str | None)
        and isinstance(overrides, list)
        and all(isinstance(one, str) for one in overrides)
    ):
        raise DataError(
            f"{run.run_file}: not a run file: it must hold digests, recipe and overrides"
        )
    return value


def warnings_of(run: RunDirectory) -> list[str]:
    """What the plan of a run warned of when it was opened."""
    found = read_run(run).get("warnings", [])
    return [str(one) for one in found] if isinstance(found, list) else []


def commit_here() -> str | None:
    """The commit of this checkout; None where git cannot say."""
    return _git_output("rev-parse", "HEAD")


def _git() -> dict[str, Any]:
    """The code: commit and whether tracked files were changed; None where git cannot say."""
    sha = commit_here()
    changed = _git_output("status", "--porcelain", "--untracked-files=no")
    return {"sha": sha, "dirty": None if changed is None else bool(changed)}


def _git_output(*arguments: str) -> str | None:
    command = ["git", "-C", str(repository_root()), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
