"""Evaluate a trained run on held-out prompts, and compare it with its baseline.

prefect deployment run evaluate/run --param run=<id under runs/>
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.frame import framed, name_of_run
from tasks import stages
from tasks.artifacts import publish_results
from tasks.slots import gpu_slots


@flow(name="evaluate", flow_run_name=name_of_run)
@framed
def evaluate(run: str) -> Path:
    """Generate, score and compare; the result is on the flow run's page.

    Args:
        run: a run directory, or (the beginning of) an id under runs/.
    """
    directory = stages.existing_run(run)
    with gpu_slots(directory, ["evaluate"]):
        stages.evaluate(directory)
    publish_results(directory)
    return directory
