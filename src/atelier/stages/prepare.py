"""Make the prompt tables: what is trained on and what is held out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from atelier.config.paths import from_root
from atelier.config.schema import RunConfig
from atelier.errors import DataError
from atelier.stages.frame import Stage, open_stage
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

OUTPUTS = ("train.parquet", "heldout.parquet", "summary.json")


def run(run: RunDirectory) -> dict[str, Any]:
    """Write data/{train.parquet, heldout.parquet, summary.json}; return the summary."""
    stage = open_stage("prepare", run, _inputs, OUTPUTS)
    return stage.execute(lambda: _work(stage))


def _inputs(run: RunDirectory, config: RunConfig) -> list[Path]:
    """The user's prompt files: a changed one prepares again, whatever its name."""
    named = {"data.path": config.data.path, "data.heldout_path": config.data.heldout_path}
    paths = []
    for field, value in named.items():
        if value is not None:
            path = from_root(value)
            if not path.exists():
                raise DataError(f"{field}: {path} does not exist")
            paths.append(path)
    return paths


def _work(stage: Stage) -> dict[str, Any]:
    from atelier.data.prepare import prepare

    summary = prepare(stage.config.data, stage.folder)
    counts = {split: summary[split]["prompts"] for split in ("train", "heldout")}
    logger.info("prepare: %(train)d training prompts, %(heldout)d held out", counts)
    return summary
