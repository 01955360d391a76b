"""What a run was made from and what it shows: parameters, prompts, evaluations, images, page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL.Image import Image

from atelier.report.grids import image_grid, image_paths
from atelier.report.run_data import (
    Evaluation,
    evaluation_series,
    finite_numbers,
    flat,
    summary_series,
)
from atelier.report.samples import read_samples, samples_page
from atelier.tracking.mlflow_mirror.series import Record, log
from atelier.tracking.mlflow_mirror.target import Target, milliseconds
from atelier.tracking.run_directory import SUITE_TABLES

PARAMETERS_A_BATCH = 100


def send_parameters(target: Target) -> None:
    """Every key of the configuration, and the file itself."""
    from mlflow.entities import Param

    values = target.config.model_dump(mode="json", exclude={"tracking"})
    params = [Param(key, str(value)) for key, value in flat(values)]
    for start in range(0, len(params), PARAMETERS_A_BATCH):
        target.client.log_batch(target.run_id, params=params[start : start + PARAMETERS_A_BATCH])
    target.client.log_artifact(target.run_id, str(target.run.config("report")), "config")


def data_digests(target: Target) -> dict[str, str]:
    """Digest of each prompt table: DVC's md5 where it is noted; else, of a run that has none and
    has gone on, its sha256. Empty before the tables are final."""
    records = target.records
    if records.get("prepare", {}).get("status") != "done":
        return {}
    noted = target.description.get("data") or {}
    if noted.get("md5"):
        return {name: str(md5) for name, md5 in noted["md5"].items()}
    if len(records) < 2:
        return {}
    outputs: dict[str, str] = records["prepare"]["outputs"]
    return {name: sha[:32] for name, sha in outputs.items() if name.endswith(".parquet")}


def send_data(target: Target, path: Path, digest: str, context: str) -> None:
    """A prompt table as a dataset input; MLflow's own digest would be of a sample."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    record = target.records["prepare"]
    source = target.config.data.path or target.config.data.source
    dataset = Dataset(
        name=f"prompts-{path.stem}",
        digest=digest,
        source_type="local",
        source=json.dumps({"uri": source}),
        profile=json.dumps(finite_numbers(record.get("summary", {}))),
    )
    tag = InputTag("mlflow.data.context", context)
    target.client.log_inputs(target.run_id, datasets=[DatasetInput(dataset, [tag])])


def send_evaluation(target: Target, one: Evaluation) -> None:
    """The means of a periodic evaluation, by step."""
    written = int((one.folder / "summary.json").stat().st_mtime * 1000)
    log(target, target.run_id, [Record(one.step, evaluation_series(one), written)])


def send_final(target: Target, stage: str, record: Mapping[str, Any]) -> None:
    """The summary of baseline or evaluate."""
    step = 0 if stage == "baseline" else target.config.train.steps
    values = summary_series(stage, record)
    log(target, target.run_id, [Record(step, values, milliseconds(record["ended"]))])


def send_tables(target: Target, stage: str) -> None:
    """The tables of baseline's or evaluate's suite as files."""
    folder = target.run.root / stage
    for name in SUITE_TABLES:
        if (folder / name).is_file():
            target.client.log_artifact(target.run_id, str(folder / name), stage)


def send_images(target: Target, one: Evaluation) -> None:
    """A grid by step, for the slider of a run's page and of the charts."""
    key = f"evaluation/{one.suite}"
    prefix = f"images/{key.replace('/', '~')}+step+{one.step}+"
    there = target.client.list_artifacts(target.run_id, "images")
    if not any(file.path.startswith(prefix) for file in there):
        grid = _grid(target, one)
        target.client.log_image(target.run_id, grid, key=key, step=one.step, synchronous=True)


def send_grid(target: Target, one: Evaluation) -> None:
    """The same as a plain file: Compare shows those that both runs have, in their root."""
    name = f"{one.suite}-step-{one.step:06d}.png"
    target.client.log_image(target.run_id, _grid(target, one), artifact_file=name)


def send_samples(target: Target, folder: Path) -> None:
    """The best and worst images of a step as a page, and what is said of them for programs."""
    page = samples_page(str(target.description["run_name"]), read_samples(folder))
    target.client.log_text(target.run_id, page, f"samples/{folder.name}.html")
    words = (folder / "samples.json").read_text(encoding="utf-8")
    target.client.log_text(target.run_id, words, f"samples/{folder.name}.json")


def send_page(target: Target) -> None:
    """The report."""
    page = target.run.report / "index.html"
    target.client.log_artifact(target.run_id, str(page), "report")


def _grid(target: Target, one: Evaluation) -> Image:
    return image_grid(image_paths(one.folder, target.config.tracking.images), scale=2)
