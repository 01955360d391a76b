"""What a mirror shows of a run: numbers by step, under MLflow's names, and image grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from PIL.Image import Image

from atelier.config.schema import RunConfig
from atelier.report.grids import image_grid, image_paths
from atelier.report.run_data import (
    evaluation_series,
    metric_records,
    periodic_evaluations,
    stage_records,
    step_series,
    summary_series,
)
from atelier.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class Row:
    """What is known of one step from one source.

    Attributes:
        name: of what it is, the same whenever the run is looked at.
    """

    name: str
    step: int
    values: Mapping[str, float]
    images: Mapping[str, Image] = field(default_factory=dict)


def rows(run: RunDirectory, config: RunConfig) -> Iterator[Row]:
    """Everything that there is now: the baseline, every training step, evaluations, the end."""
    records = stage_records(run)
    for stage, step in (("baseline", 0), ("evaluate", config.train.steps)):
        record = records.get(stage)
        if record is not None and record["status"] == "done":
            name = f"{stage}:{record['started']}"
            yield Row(name, step, summary_series(stage, record))
    for metrics in metric_records(run):
        yield Row(f"step:{metrics['step']}", metrics["step"], step_series(metrics))
    for one in periodic_evaluations(run):
        images = {}
        if one.has_images:
            grid = image_grid(image_paths(one.folder, config.tracking.images), scale=2)
            images[f"images/{one.suite}"] = grid
        name = f"evaluation:{one.suite}:{one.step}"
        yield Row(name, one.step, evaluation_series(one), images)
