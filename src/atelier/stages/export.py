"""Export the trained weights and prove the export by reloading it (docs/export.md)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from atelier.config.schema import RunConfig
from atelier.report.comparison import read_comparison
from atelier.stages.baseline import local_model
from atelier.stages.evaluate import last_checkpoint
from atelier.stages.frame import Stage, open_stage
from atelier.stages.run_file import shown_path
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

OUTPUTS = ("*/MANIFEST.json", "summary.json")


def run(run: RunDirectory) -> dict[str, Any]:
    """Write export/<format>/ for every format of `export.formats`; return what was proven."""
    own = stage(run)
    return own.execute(lambda: _work(own))


def stage(run: RunDirectory) -> Stage:
    """The stage of a run, its inputs found."""
    return open_stage("export", run, _inputs, OUTPUTS)


def _inputs(run: RunDirectory, config: RunConfig) -> list[Path]:
    checkpoint = last_checkpoint(run) / "MANIFEST.json"
    comparison = run.evaluate / "comparison.json"
    return [run.data / "heldout.parquet", *local_model(config), checkpoint, comparison]


def _work(stage: Stage) -> dict[str, Any]:
    from atelier.export.run import export_run
    from atelier.export.summary import summarize

    results = {row.metric: (row.before, row.after) for row in read_comparison(stage.run)}
    summary = summarize(export_run(stage.run, stage.config, results))
    for name, one in summary["published"].items():
        logger.info(
            "export: %s (%s) proven by reloading", shown_path(stage.folder / name), one["dtype"]
        )
    return summary
