"""Export a run's trained weights, and prove the export by reloading it.

prefect deployment run export/run --param run=<id under runs/>
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.frame import framed, name_of_run
from tasks import stages
from tasks.slots import gpu_slots


@flow(name="export", flow_run_name=name_of_run)
@framed
def export(run: str) -> Path:
    """Write export/<format>/ for every format of the run's configuration.

    Args:
        run: a run directory, or (the beginning of) an id under runs/.
    """
    directory = stages.existing_run(run)
    with gpu_slots(directory, ["export"]):
        stages.export(directory)
    return directory
