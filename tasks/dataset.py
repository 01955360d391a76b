"""The prompt tables of a run, under DVC: the only place where a flow touches DVC."""

from __future__ import annotations

import logging
from pathlib import Path

from atelier.config.resolve import load_stage_config
from atelier.data.versioning import can_track
from atelier.stages import prepared
from atelier.stages.prepare import open_prepare
from atelier.tracking.run_directory import RunDirectory
from tasks.slots import slot

logger = logging.getLogger("atelier.flow")


def prepared_data(run: RunDirectory) -> Path | None:
    """The folder that the prepare stage takes its tables from.

    None where it makes them itself: it did so before, or the project is no DVC repository. The
    `dvc` slot is held only where a DVC command may have to run.

    Raises:
        DataError, Stopped: as `stages.prepared.provide`.
    """
    config = load_stage_config(run.config("prepare"))
    if not can_track(prepared.prepared_root()):
        logger.info("prepare: no DVC repository here, so the data are made and not versioned")
        return None
    if not prepared.missing_inputs(config):
        if open_prepare(run).is_done():
            return None
        if prepared.is_ready(folder := prepared.folder_of(config)):
            return folder
    with slot("dvc"):
        return prepared.provide(config)
