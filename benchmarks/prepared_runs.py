"""A run directory with all that the trainer reads, made without Prefect and MLflow."""

from __future__ import annotations

from pathlib import Path

from atelier.config.resolve import write_stage_configs
from atelier.config.schema import RunConfig
from atelier.data.prepare import prepare
from atelier.tracking.run_directory import RunDirectory


def prepared(root: Path, config: RunConfig) -> RunDirectory:
    """Its configuration files and prompt tables, in a folder that is made."""
    run = RunDirectory(root)
    write_stage_configs(config, run)
    prepare(config.data, run.data)
    return run
