"""Numbers by step: training metrics, and what the run's own processes used of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from atelier.report.run_data import finite_numbers, metric_records, step_series
from atelier.tracking.events import read_json_lines
from atelier.tracking.mlflow_mirror.target import Target, milliseconds

METRICS_A_BATCH = 1000

# MLflow runs whose last step is known to this process, and not only remembered.
_asked: set[str] = set()


@dataclass(frozen=True)
class Record:
    """The numbers of one step, and when they were measured (milliseconds), if that is known."""

    step: int
    values: Mapping[str, float]
    timestamp: int | None = None


def send_steps(target: Target) -> None:
    """Training metrics in whole steps. A resumed trainer repeats steps, with equal values but for
    timings: those that MLflow has are not sent again."""
    found = [Record(one["step"], step_series(one)) for one in metric_records(target.run)]
    _send_new(target, target.run_id, found)


def send_system(target: Target, stage: str, record: Mapping[str, Any]) -> None:
    """Samples taken while an attempt at a stage ran, under MLflow's own names for them, so that
    the page of the stage's run shows them as its system metrics."""
    started = datetime.fromisoformat(record["started"])
    found = []
    for number, (_, sample) in enumerate(read_json_lines(target.run.system)):
        if datetime.fromisoformat(sample["time"]) >= started:
            numbers = finite_numbers({k: v for k, v in sample.items() if k != "time"})
            values = {f"system/{name}": value for name, value in numbers.items()}
            found.append(Record(number, values, milliseconds(sample["time"])))
    if found:
        _send_new(target, target.child(stage, record), found)


def log(target: Target, run_id: str, records: Sequence[Record]) -> None:
    """Metrics as they are. With an equal timestamp MLflow keeps equal ones once."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [
        Metric(name, value, now if one.timestamp is None else one.timestamp, one.step)
        for one in records
        for name, value in one.values.items()
    ]
    target.client.log_batch(run_id, metrics=metrics)


def _send_new(target: Target, run_id: str, records: Sequence[Record]) -> None:
    """Those after the last step that was sent, in batches, each remembered."""
    records = [one for one in records if one.values]
    if not records:
        return
    last = int(target.memory.values["series"].get(run_id, -1))
    if run_id not in _asked:
        name = next(iter(records[0].values))
        there = target.client.get_metric_history(run_id, name)
        last = max([last, *(int(metric.step) for metric in there)])
    # A batch that fails may have arrived all the same: ask again before sending it again.
    _asked.discard(run_id)
    for batch in _batches([one for one in records if one.step > last]):
        target.check_deadline()
        log(target, run_id, batch)
        target.memory.note_in("series", run_id, batch[-1].step)
    _asked.add(run_id)


def _batches(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Whole records, at most METRICS_A_BATCH values (or one record) together."""
    batch: list[Record] = []
    for record in records:
        if batch and sum(len(one.values) for one in [*batch, record]) > METRICS_A_BATCH:
            yield batch
            batch = []
        batch.append(record)
    if batch:
        yield batch
