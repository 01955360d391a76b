"""All that MLflow shall have of a run, in order.

It is of the run's configuration as it is now: a stage's folder of another one, which the stage has
yet to move aside, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from atelier.config.schema import RunConfig
from atelier.report.run_data import own_records, periodic_evaluations, sample_folders
from atelier.tracking.mlflow_mirror import contents, models, series, store, traces
from atelier.tracking.mlflow_mirror.memory import Memory
from atelier.tracking.mlflow_mirror.target import Target, identities
from atelier.tracking.run_directory import RunDirectory, read_run_file

SPLITS = {"train": "train", "heldout": "eval"}


def send(run: RunDirectory, config: RunConfig, uri: str, deadline: float) -> None:
    """Send what was not sent yet.

    Args:
        deadline: time.monotonic() at which to stop.

    Raises:
        DeadlineReached: something is left.
        Exception: whatever MLflow raises.
    """
    description = read_run_file(run)
    found = identities(own_records(run))
    memory = Memory(run, description["digests"]["report"], uri, found)
    target = Target(run, config, uri, store.client(uri), memory, description, deadline)
    target.open()
    for name, send_item in _items(target):
        target.check_deadline()
        if not memory.is_sent(name):
            send_item()
            memory.note_sent(name)
    if "train" in target.records:
        series.send_steps(target)
    target.send_status()
    if "train" in target.records:
        traces.send_traces(target)
    memory.save()  # its time of change says up to when everything was sent


def _items(target: Target) -> Iterator[tuple[str, Callable[[], None]]]:
    """Everything that is sent once, by a name that changes with what it is."""
    yield "parameters", partial(contents.send_parameters, target)
    digests = contents.data_digests(target)
    for split, context in SPLITS.items():
        path = target.run.data / f"{split}.parquet"
        if path.name in digests:
            send_data = partial(contents.send_data, target, path, digests[path.name], context)
            yield f"data:{split}", send_data
    if "train" in target.records:
        yield from _of_training(target)
    yield from _of_stages(target)


def _of_training(target: Target) -> Iterator[tuple[str, Callable[[], None]]]:
    for one in periodic_evaluations(target.run):
        name = f"{one.suite}:{one.step}"
        yield f"scores:{name}", partial(contents.send_evaluation, target, one)
        if one.has_images:
            yield f"images:{name}", partial(contents.send_images, target, one)
            yield f"compare:{name}", partial(contents.send_grid, target, one)
    for folder in sample_folders(target.run):
        yield f"samples:{folder.name}", partial(contents.send_samples, target, folder)


def _of_stages(target: Target) -> Iterator[tuple[str, Callable[[], None]]]:
    for stage, record in target.records.items():
        if stage == "train":
            series.send_system(target, stage, record)
        if record["status"] == "running":
            continue
        name = f"{stage}:{record['started']}"
        yield f"stage:{name}", partial(target.send_stage, stage, record)
        if record["status"] != "done":
            continue
        if stage in ("baseline", "evaluate"):
            yield f"final:{name}", partial(contents.send_final, target, stage, record)
            yield f"tables:{name}", partial(contents.send_tables, target, stage)
        if stage == "export":
            yield f"model:{name}", partial(models.send_model, target, f"model:{name}", record)
        if stage == "report":
            yield f"page:{name}", partial(contents.send_page, target)
