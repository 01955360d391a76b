"""What a mirror shows of a run: numbers by step, under MLflow's names, and image grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL.Image import Image

from atelier.config.digest import digest
from atelier.config.schema import RunConfig
from atelier.report.grids import image_grid, image_paths
from atelier.report.run_data import (
    evaluation_series,
    metric_records,
    own_records,
    periodic_evaluations,
    step_series,
    summary_series,
)
from atelier.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class Row:
    """What is known of one step from one source.

    Attributes:
        name: of what it is, the same whenever the run is looked at, and another one of a stage that
            was done again from another configuration or other data.
        pictures: files of each image grid; they are decoded where the row is shown, for a mirror
            looks at all rows every few seconds and shows few.
    """

    name: str
    step: int
    values: Mapping[str, float]
    pictures: Mapping[str, Sequence[Path]] = field(default_factory=dict)

    def images(self) -> dict[str, Image]:
        """The grids, by name."""
        return {name: image_grid(files, scale=2) for name, files in self.pictures.items()}


def rows(run: RunDirectory, config: RunConfig) -> Iterator[Row]:
    """Everything that there is now of this configuration: the baseline, every training step,
    evaluations, the end. A stage's folder of another one, which it has yet to move aside, is not.
    """
    own = own_records(run)
    for stage, step in (("baseline", 0), ("evaluate", config.train.steps)):
        if stage in own and own[stage]["status"] == "done":
            name = f"{stage}:{own[stage]['started']}"
            yield Row(name, step, summary_series(stage, own[stage]))
    if "train" in own:
        yield from _of_training(run, config, own["train"])


def _of_training(run: RunDirectory, config: RunConfig, record: Mapping[str, Any]) -> Iterator[Row]:
    training = digest(record["identity"])[:12]
    for metrics in metric_records(run):
        name = f"step:{training}:{metrics['step']}"
        yield Row(name, metrics["step"], step_series(metrics))
    for one in periodic_evaluations(run):
        pictures = {}
        if one.has_images:
            pictures[f"images/{one.suite}"] = image_paths(one.folder, config.tracking.images)
        name = f"evaluation:{training}:{one.suite}:{one.step}"
        yield Row(name, one.step, evaluation_series(one), pictures)
