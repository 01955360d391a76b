"""Write the page of the run, and its result and curves as small files (src/atelier/report)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from atelier.config.schema import RunConfig
from atelier.stages.frame import RECORD, Stage, open_stage
from atelier.stages.run_file import shown_path
from atelier.tracking.run_directory import RunDirectory, write_text_atomically

logger = logging.getLogger(__name__)

OUTPUTS = ("index.html", "metrics.json", "*.csv")


def run(run: RunDirectory) -> dict[str, Any]:
    """Write report/{index.html, metrics.json, training.csv, heldout.csv}; return where."""
    stage = open_stage("report", run, _inputs, OUTPUTS)
    return stage.execute(lambda: _work(stage))


def _inputs(run: RunDirectory, config: RunConfig) -> list[Path]:
    """The records of the earlier stages: they hold the sha256 of all that the page shows."""
    folders = (run.data, run.baseline, run.train, run.evaluate, run.export)
    return [folder / RECORD for folder in folders if (folder / RECORD).exists()]


def _work(stage: Stage) -> dict[str, Any]:
    from atelier.report.page import render
    from atelier.report.result_files import write_result_files

    page = stage.folder / "index.html"
    write_text_atomically(page, render(stage.run))
    write_result_files(stage.run, stage.folder)
    logger.info("report: %s", shown_path(page))
    return {"page": page.relative_to(stage.run.root).as_posix(), "bytes": page.stat().st_size}
