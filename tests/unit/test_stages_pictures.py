"""The stages and captioned pictures: their table is made, taken from elsewhere, and trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier.config.resolve import resolve, write_stage_configs
from atelier.errors import DataError
from atelier.stages import frame, prepare, prepared, train
from atelier.stages.run_file import read_run
from atelier.tracking.run_directory import RunDirectory
from tests.unit.test_captioned import write_lines


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame.mirroring, "follow", lambda run: None)


def made(folder: Path, *overrides: str) -> RunDirectory:
    run = RunDirectory(folder)
    sizes = ("data.train_prompts=20", "data.heldout_prompts=5")
    write_stage_configs(resolve("tiny/base", [*sizes, *overrides]), run)
    return run


def test_the_table_is_made_noted_and_an_input_of_training(tmp_path: Path) -> None:
    on = ("data.sft={source: scenes, scenes: 16}", "train.sft.coefficient=0.1")
    run = made(tmp_path / "run", *on)
    assert prepare.run(run)["sft"]["prompts"] == 16
    assert set(read_run(run)["data"]["md5"]) == {"train.parquet", "heldout.parquet", "sft.parquet"}
    assert run.data / "sft.parquet" in train.stage(run).inputs
    other = made(tmp_path / "other", *on)
    assert prepare.run(other, run.data)["sft"]["prompts"] == 16
    tables = [(one.data / "sft.parquet").read_bytes() for one in (run, other)]
    assert tables[0] == tables[1]
    (other.data / "sft.parquet").unlink()
    assert not prepare.open_prepare(other).is_done(), "a lost table is made again"


def test_without_pictures_there_is_no_table(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    assert prepare.run(run)["sft"] is None
    assert set(read_run(run)["data"]["md5"]) == {"train.parquet", "heldout.parquet"}
    assert not (run.data / "sft.parquet").exists()
    assert run.data / "sft.parquet" not in train.stage(run).inputs


def test_a_file_of_captions_is_an_input_and_refused_where_it_is_missing(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "own.jsonl", 3)
    run = made(tmp_path / "run", f"data.sft={{source: files, files: {{own: {{path: {file}}}}}}}")
    assert file in prepare.open_prepare(run).inputs
    assert prepared.missing_inputs(prepare.open_prepare(run).config) == []
    file.unlink()
    with pytest.raises(
        DataError, match=r"data\.sft\.files\.own\.path: .*own\.jsonl does not exist"
    ):
        prepare.open_prepare(run)
