"""Make the prompt tables: what is trained on and what is held out."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atelier.config.paths import from_root, repository_root, tracking_file
from atelier.config.prompt_files import named_files
from atelier.config.schema import RunConfig
from atelier.config.sft_rules import picture_files
from atelier.data.versioning import md5_of, md5_of_folder, tracked_md5
from atelier.errors import DataError
from atelier.stages.frame import Stage, open_stage
from atelier.stages.readable import require_texts
from atelier.stages.run_file import read_run, write_data
from atelier.tracking.run_directory import RunDirectory, read_json_object

logger = logging.getLogger(__name__)

TABLES = ("train.parquet", "heldout.parquet")
PICTURES = "sft.parquet"
# What the rows of each are called.
ROWS = {
    **dict(zip(TABLES, ("training prompt", "held-out prompt"), strict=True)),
    PICTURES: "captioned picture",
}
OUTPUTS = (*TABLES, PICTURES, "summary.json")


def run(run: RunDirectory, prepared: Path | None = None) -> dict[str, Any]:
    """Write data/{train.parquet, heldout.parquet, summary.json}, and data/sft.parquet where
    captioned pictures are asked for; return the summary.

    Args:
        prepared: a folder with these files, made before of the same configuration and inputs
            (stages/prepared.py): they are copied. None makes them.

    Raises:
        DataError: an input is missing or malformed, or `prepared` is not what DVC says it is; or a
            text has a mark of the language model that reads it.
        PlanError: there are fewer captioned pictures than an update takes.
    """
    stage = open_prepare(run)
    summary = stage.execute(lambda: _work(stage, prepared))
    _note_data(stage.run, stage.config, prepared)
    return summary


def tables_of(config: RunConfig) -> tuple[str, ...]:
    """The prompt tables of a configuration."""
    return TABLES if config.data.sft.source is None else (*TABLES, PICTURES)


def open_prepare(run: RunDirectory) -> Stage:
    """The stage, its inputs found.

    Raises:
        ConfigError, DataError: the configuration or an input is missing.
    """
    return open_stage("prepare", run, lambda _, config: input_paths(config), OUTPUTS)


def input_paths(config: RunConfig) -> list[Path]:
    """The user's files of prompts and captions: a changed one prepares again, whatever its name.

    Raises:
        DataError: one does not exist.
    """
    from atelier.data.prepare import input_files

    named = [(one.key, one.path) for one in named_files(config.data)]
    pictures = [(f"data.{key}", file) for key, file in picture_files(config.data.sft)]
    for key, file in (*named, *pictures):
        if not from_root(file).exists():
            how = _how_to_get(from_root(file))
            raise DataError(f"{key}: {file} does not exist{how}")
    return input_files(config.data, repository_root())


def _how_to_get(path: Path) -> str:
    file = tracking_file(path)
    if file is None:
        return ""
    return f"; DVC tracks it: dvc pull {file.relative_to(repository_root()).as_posix()}"


def _work(stage: Stage, prepared: Path | None) -> dict[str, Any]:
    if prepared is None:
        from atelier.data.prepare import prepare

        summary = prepare(stage.config.data, stage.folder)
    else:
        summary = _copy(prepared, stage.folder, (*tables_of(stage.config), "summary.json"))
    _require_use(stage.config, stage.folder)
    # Before the stage ends, which is when the mirror first looks at the run.
    _note_data(stage.run, stage.config, prepared)
    logger.info("prepare: %s", _described(summary))
    return summary


def _require_use(config: RunConfig, folder: Path) -> None:
    """The tables are of use to the run: what its policy cannot read, and too few pictures, are told
    before the baseline is measured."""
    from atelier.data.captioned import require_enough
    from atelier.data.prompts import read_prompts

    found = {name: read_prompts(folder / name) for name in tables_of(config)}
    require_texts(config, {ROWS[name]: prompts for name, prompts in found.items()})
    if config.train.sft.enabled:
        pictures = config.train.sft.pictures_per_update
        require_enough(len(found[PICTURES]), config.data.sft, pictures)


def _described(summary: dict[str, Any]) -> str:
    """How many prompts there are, and why there are no more."""
    parts = [
        f"{summary['train']['prompts']} training prompts, {summary['heldout']['prompts']} held out"
    ]
    if pictures := summary["sft"]:
        parts.append(f"{pictures['prompts']} captioned pictures")
    if dropped := summary["dropped_because_held_out"]:
        parts.append(f"{dropped} not trained on, because they or their partner are held out too")
    for split, more in summary["left_out"].items():
        if more:
            parts.append(f"{more} more than data.{split}_prompts left out")
    for dataset in (summary["mixture"] or {}).get("datasets", ()):
        if lacking := dataset["without_target"]:
            parts.append(f"{lacking} of {dataset['name']} without a text to read, so without OCR")
    if malformed := summary["malformed"]["left_out"]:
        parts.append(f"{malformed} malformed rows left out (data.malformed_rows)")
    return "; ".join(parts)


def _copy(prepared: Path, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Copies and no links: a run's files stay what they are when the data's next version comes."""
    for name in names:
        shutil.copyfile(prepared / name, folder / name)
    file = tracking_file(prepared)
    if file is not None and md5_of_folder(folder, names) != tracked_md5(file):
        raise DataError(
            f"{prepared}: not what {file.name} says; restore it: dvc checkout --force {file.name}"
        )
    return read_json_object(folder / "summary.json")


def _note_data(run: RunDirectory, config: RunConfig, prepared: Path | None) -> None:
    """Into run.json, unless it stands there."""
    noted = read_run(run).get("data") or {}
    md5 = {name: md5_of(run.data / name) for name in tables_of(config)}
    file = tracking_file(prepared) if prepared else None
    dvc: str | None = None
    if file is not None:
        dvc = file.relative_to(repository_root()).as_posix()
    elif noted.get("md5") == md5:
        dvc = noted["dvc"]
    if noted != {"md5": md5, "dvc": dvc}:
        write_data(run, md5, dvc)
