"""Where everything of a run lies. One folder a stage, one writer a folder."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from atelier.errors import AtelierError, DataError
from atelier.legible import legible

FORMAT = 1  # of a run directory; in run.json, to be raised when an older Atelier would misread it
PRUNED = "pruned.json"  # beside checkpoints: which ones were removed to save space
_CHECKPOINT = re.compile(r"step-\d{6,}")
# What the folder of an evaluation holds beside scores and images: the tables of its suite.
SUITE_TABLES = (
    *("paircomp.json", "mmmg.json", "complex_edit.json"),
    *("unigenbench.json", "unigenbench_scores.csv"),
)
STAGES = ("prepare", "baseline", "train", "evaluate", "export", "report")


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run. Creating it touches nothing."""

    root: Path

    @property
    def run_file(self) -> Path:
        return self.root / "run.json"

    @property
    def data(self) -> Path:
        """What the prepare stage writes: train.parquet, heldout.parquet, summary.json; sft.parquet,
        where pictures are learned from."""
        return self.root / "data"

    @property
    def baseline(self) -> Path:
        return self.root / "baseline"

    @property
    def train(self) -> Path:
        return self.root / "train"

    @property
    def evaluate(self) -> Path:
        return self.root / "evaluate"

    @property
    def export(self) -> Path:
        return self.root / "export"

    @property
    def report(self) -> Path:
        return self.root / "report"

    @property
    def metrics(self) -> Path:
        return self.train / "metrics.jsonl"

    @property
    def system(self) -> Path:
        """What the trainer's processes used of the machine, sampled every few seconds."""
        return self.train / "system.jsonl"

    @property
    def events(self) -> Path:
        return self.train / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.train / "checkpoints"

    @property
    def sampler(self) -> Path:
        """What servers that draw completions read: the encoder's files, and weights."""
        return self.train / "sampler"

    @property
    def processes(self) -> Path:
        """Records of the guards: what runs for this run, and how it ended."""
        return self.root / "processes"

    def config(self, stage: str) -> Path:
        """The resolved configuration of one stage, the only one that stage reads."""
        return self.root / "config" / f"{stage}.yaml"

    def periodic_evaluation(self, suite: str, step: int) -> Path:
        return self.train / "evaluation" / suite / f"step-{step:06d}"

    @property
    def samples(self) -> Path:
        """The best and worst images of some steps, one folder a step."""
        return self.train / "samples"

    @property
    def judge_traces(self) -> Path:
        """Some of the questions to judges, with their answers."""
        return self.train / "judge_traces.jsonl"

    def step_samples(self, step: int) -> Path:
        return self.samples / f"step-{step:06d}"


def all_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in `folder`, oldest first. Other names, such as of one moved aside, are none."""
    if not folder.is_dir():
        return []
    steps = {path: _CHECKPOINT.fullmatch(path.name) for path in folder.iterdir()}
    return sorted(
        (path for path, name in steps.items() if name),
        key=lambda path: int(path.name.removeprefix("step-")),
    )


def write_text_atomically(path: Path, text: str) -> None:
    """Write aside, force to disk, rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document atomically, with keys sorted so that equal values are equal files."""
    write_text_atomically(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json_object(path: Path, error: type[AtelierError] = DataError) -> dict[str, Any]:
    """The JSON object that a file holds, be it what `write_json` wrote or a model's.

    Args:
        error: what is raised, by what a damaged file is to whoever reads it.

    Raises:
        AtelierError: the file is missing, is not JSON, or holds something other than an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as reason:
        raise error(f"{path}: cannot be read as JSON: {reason}") from reason
    if not isinstance(value, dict):
        raise error(f"{path}: expected a JSON object, found a {type(value).__name__}")
    return value


def read_pruned(folder: Path) -> dict[str, Any]:
    """{checkpoints, on}: what `atelier prune` took from a folder of checkpoints; empty if nothing.

    Raises:
        DataError: its note cannot be read, or lacks one of them.
    """
    path = folder / PRUNED
    if not path.exists():
        return {}
    note = read_json_object(path)
    names = note.get("checkpoints")
    are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not are_names or not isinstance(note.get("on"), str):
        raise DataError(
            f"{path}: not a note of pruned checkpoints: it must hold checkpoints (names) and on (a "
            "day); put it back, or remove it"
        )
    return note


def pruned_checkpoints(folder: Path) -> str:
    """`read_pruned` as a clause; empty if nothing was pruned."""
    note = read_pruned(folder)
    return f"{', '.join(note['checkpoints'])} were pruned on {note['on']}" if note else ""


def read_run_file(run: RunDirectory) -> dict[str, Any]:
    """run.json, of a format this version knows.

    Raises:
        DataError: it is missing or damaged, or a newer Atelier wrote the directory.
    """
    value = read_json_object(run.run_file)
    found = value.get("format")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DataError(f"{run.run_file}: format: {found!r} is no version of a run directory")
    if found > FORMAT:
        raise DataError(
            f"{run.run_file}: a run directory of format {found}, and this Atelier knows formats up "
            f"to {FORMAT}: read it with the version that wrote it, or a newer one (`git pull`, "
            "then `make setup`)"
        )
    try:
        _RunFile.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{run.run_file}: {legible(where)}: {first['msg']}") from error
    return value


class _Git(BaseModel):
    model_config = ConfigDict(strict=True)

    sha: str | None = None


class _RunFile(BaseModel):
    """What readers of run.json rely on, where it is there: earlier versions wrote less."""

    model_config = ConfigDict(strict=True)

    run_name: str | None = None
    recipe: str | None = None
    warnings: list[str] | None = None
    variables: dict[str, str] = {}
    digests: dict[str, str | None] = {}
    data: dict[str, Any] | None = None
    git: _Git = _Git()
