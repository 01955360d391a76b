"""Whether anything is left to do for a run."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from atelier.errors import AtelierError
from atelier.report.run_data import stage_folder
from atelier.stages.frame import read_record
from atelier.tracking.run_directory import RunDirectory


def are_done(run: Path, names: Sequence[str]) -> bool:
    """Whether stages of a run would all find nothing to do."""
    directory = RunDirectory(run)
    try:
        records = [read_record(stage_folder(directory, name)) for name in names]
        if any(record is None or record["status"] != "done" for record in records):
            return False
        modules = [importlib.import_module(f"atelier.stages.{name}") for name in names]
        return all(module.stage(directory).is_done() for module in modules)
    except AtelierError:
        return False  # the stage itself says what is wrong
