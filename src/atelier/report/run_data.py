"""What a run directory holds, as plain values: for the report page and for the MLflow mirror.

Reads files and nothing else, and takes a run at any time: what is not there yet is left out.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.config.schema import RunConfig
from atelier.data.ground_truth import is_edit
from atelier.data.prompts import Prompt, read_prompts
from atelier.errors import DataError
from atelier.evaluation.reading import read_rows, read_summary, require_shown
from atelier.legible import legible, legible_value
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import STAGES, RunDirectory, read_json_object, read_run_file

_STEP_FOLDER = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Evaluation:
    """One scored evaluation: images/, scores.jsonl and summary.json in a folder. What it reads
    raises DataError where a file is damaged."""

    suite: str
    step: int
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        return read_summary(self.folder)

    @property
    def means(self) -> dict[str, float]:
        """The mean of every metric that some image has."""
        return {name: float(one["mean"]) for name, one in self.summary["metrics"].items()}

    @property
    def prompts(self) -> int:
        """How many it is of."""
        return len({(row.get("dataset_id"), row["prompt_id"]) for row in self.rows})

    @property
    def has_images(self) -> bool:
        """Whether its images are still there: pruning takes those of earlier steps."""
        return (self.folder / "images").is_dir()

    @property
    def rows(self) -> list[dict[str, Any]]:
        summary = self.summary
        rows = read_rows(self.folder, summary)
        require_shown(self.folder, rows, summary)
        return rows


def periodic_evaluations(run: RunDirectory) -> list[Evaluation]:
    """The evaluations during training that are scored, by suite and step."""
    found = []
    for summary in run.train.glob("evaluation/*/step-*/summary.json"):
        match = _STEP_FOLDER.fullmatch(summary.parent.name)
        if match:
            suite = summary.parents[1].name
            found.append(Evaluation(suite, int(match[1]), summary.parent))
    return sorted(found, key=lambda one: (one.suite, one.step))


def heldout_edits(run: RunDirectory, config: RunConfig) -> dict[tuple[int, int], Prompt]:
    """The held-out instructions of a run that edits, by data set and number."""
    table = run.data / "heldout.parquet"
    prompts = read_prompts(table) if config.rollout.kind == "edit" and table.exists() else ()
    return {(one.dataset_id, one.prompt_id): one for one in prompts if is_edit(one)}


def sample_folders(run: RunDirectory) -> list[Path]:
    """The steps whose best and worst images are kept, the earliest first."""
    places = (path.parent for path in run.samples.glob("step-*/samples.json"))
    found = [folder for folder in places if _STEP_FOLDER.fullmatch(folder.name)]
    return sorted(found, key=lambda folder: int(folder.name.removeprefix("step-")))


def stage_folder(run: RunDirectory, stage: str) -> Path:
    """The folder a stage writes."""
    return run.data if stage == "prepare" else run.root / stage


def stage_records(run: RunDirectory) -> dict[str, dict[str, Any]]:
    """stage.json of every stage that has begun, in the order of the stages."""
    records = {}
    for stage in STAGES:
        path = stage_folder(run, stage) / "stage.json"
        if path.exists():
            records[stage] = read_json_object(path)
    return records


def own_records(run: RunDirectory) -> dict[str, dict[str, Any]]:
    """Those of `stage_records` that are of the configuration in run.json, and of what the stages
    before them have left: the folder of a stage of another one, or of other data, lies there until
    the stage begins again and moves it aside."""
    digests = read_run_file(run)["digests"]
    own: dict[str, dict[str, Any]] = {}
    left: dict[str, Mapping[str, str] | None] = {}  # by folder; None: not known yet
    for stage, record in stage_records(run).items():
        is_own = record["identity"]["digest"] == digests[stage] and _follows(record, left)
        if is_own:
            own[stage] = record
        is_done = is_own and record["status"] == "done"
        left[stage_folder(run, stage).name] = record["outputs"] if is_done else None
    return own


def _follows(record: Mapping[str, Any], left: Mapping[str, Mapping[str, str] | None]) -> bool:
    """Whether a stage read what the stages before it have left by now."""
    for label, read in record["identity"]["inputs"].items():
        folder, _, name = label.partition("/")
        outputs = left.get(folder, {})
        if outputs is None:
            return False
        is_hashed = not read.endswith(" bytes")  # of a large file, a stage notes the size alone
        if is_hashed and outputs.get(name, read) != read:
            return False
    return True


@dataclass(frozen=True)
class StageTime:
    """How a stage went: how often it was begun, and the seconds of all attempts but the
    `untimed` ones, which were killed or are not done."""

    stage: str
    status: str
    begun: int
    seconds: float
    untimed: int


def stage_times(records: Mapping[str, Mapping[str, Any]]) -> list[StageTime]:
    """Of the records of `stage_records`; an attempt that a later one goes on from is counted."""
    found = []
    for stage, record in records.items():
        seconds = [one.get("seconds") for one in (*record.get("earlier", []), record)]
        known = [one for one in seconds if one is not None]
        untimed = len(seconds) - len(known)
        found.append(StageTime(stage, record["status"], len(seconds), sum(known), untimed))
    return found


def metric_records(run: RunDirectory) -> list[dict[str, Any]]:
    """The training metrics, one record a step, steps increasing.

    Raises:
        DataError: a line is no such record, or has a number that no float is.
    """
    records = [record for _, record in read_json_lines(run.metrics)]
    for number, record in enumerate(records, start=1):
        _require_record(f"{run.metrics}: line {number}", record)
    return records


def _require_record(where: str, record: Mapping[str, Any]) -> None:
    if type(record.get("step")) is not int:
        raise DataError(f"{where}: step: a whole number expected")
    for key, value in record.items():
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise DataError(f"{where}: {legible(key)} is {legible_value(value)}, beyond all floats")


def step_series(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite metrics of one training step."""
    return {key: value for key, value in finite_numbers(record).items() if key != "step"}


def evaluation_series(one: Evaluation) -> dict[str, float]:
    """The means of a periodic evaluation, as mirrors name them."""
    return {f"evaluation/{one.suite}/{name}": value for name, value in one.means.items()}


def summary_series(stage: str, record: Mapping[str, Any]) -> dict[str, float]:
    """The summary of baseline or evaluate, as mirrors name it."""
    name = "baseline" if stage == "baseline" else "final"
    return {f"{name}/{key}": value for key, value in finite_numbers(record["summary"]).items()}


def flat(value: Any, prefix: str = "", separator: str = ".") -> Iterator[tuple[str, Any]]:
    """Nested mappings as (dotted key, value); lists stay values."""
    if not isinstance(value, Mapping):
        yield prefix, value
        return
    for key, item in value.items():
        yield from flat(item, f"{prefix}{separator}{key}" if prefix else str(key), separator)


def finite_numbers(value: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a nested mapping, keys joined by '/'; NaN, infinity and text are
    dropped, because MLflow stores infinity as 1.8e308 and draws it."""
    numbers = {}
    for key, item in flat(value, separator="/"):
        if isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item):
            numbers[key] = float(item)
    return numbers
