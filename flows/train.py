"""Train a prepared run, after measuring the model as it is.

prefect deployment run train/run --param run=<id under runs/>
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.frame import framed, name_of_run
from tasks import stages
from tasks.progress import TrainingProgress
from tasks.servers import servers_table
from tasks.slots import gpu_slots, require_gpu_slots


@flow(name="train", flow_run_name=name_of_run)
@framed
def train(run: str) -> Path:
    """Evaluate the untrained model, unless that is done, and train to the last step.

    Args:
        run: a run directory, or (the beginning of) an id under runs/.
    """
    directory = stages.existing_run(run)
    require_gpu_slots(directory)
    computing = ("baseline", "train")
    with TrainingProgress(directory) as progress, gpu_slots(directory, computing, progress.say):
        stages.baseline(directory)
        with servers_table(directory):
            stages.train(directory)
    return directory
