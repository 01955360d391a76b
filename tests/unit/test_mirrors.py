"""W&B and SwanLab beside MLflow: the same numbers, from files of the run, made again when lost."""

from __future__ import annotations

import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atelier.config.plan import plan
from atelier.config.resolve import load_stage_config, resolve
from atelier.errors import PlanError
from atelier.report.run_data import stage_folder
from atelier.tracking import mirrors
from atelier.tracking.mirrors.base import Opening
from atelier.tracking.mirrors.rows import Row, rows
from atelier.tracking.run_directory import RunDirectory
from tests.support.fake_run import finish, open_fake_run, write_record, write_steps

WANDB, SWANLAB = "tracking.wandb.enabled=true", "tracking.swanlab.enabled=true"
ONLINE = "tracking.swanlab.mode=online"
EXPECTED = {
    ("baseline/similarity", 0): 0.5,
    **{("reward/mean", step): step / 100 for step in (1, 2, 3)},
    **{("time/step", step): 1.0 for step in (1, 2, 3)},
    ("final/similarity", 60): 0.7,
}


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_left_alone_until", {})
    monkeypatch.setattr(mirrors, "_open", {})
    logging.getLogger("atelier").propagate = True


def run_of(folder: Path, *overrides: str) -> RunDirectory:
    return open_fake_run(folder / "run-1", f"sqlite:///{folder / 'mlflow.db'}", *overrides)


class Notebook:
    """A mirror that notes what it is told."""

    def __init__(self) -> None:
        self.openings: list[Opening] = []
        self.rows: list[Row] = []
        self.closed = 0
        self.fails = False
        self.is_broken = False

    def opened(self, opening: Opening) -> Notebook:
        if self.fails:
            raise RuntimeError("no answer\nfor long")
        self.openings.append(opening)
        self.is_broken = False
        return self

    def log(self, row: Row) -> None:
        if self.is_broken:
            raise ConnectionError("broken pipe")
        self.rows.append(row)

    def close(self) -> None:
        self.closed += 1
        if self.is_broken:
            raise ConnectionError("broken pipe")


@pytest.fixture(name="notebook")
def _notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    notebook = Notebook()
    monkeypatch.setattr(mirrors, "_opened", lambda name, opening: notebook.opened(opening))
    return notebook


def values(found: list[Row]) -> dict[tuple[str, int], float]:
    return {(name, row.step): value for row in found for name, value in row.values.items()}


def test_rows_are_what_mlflow_is_sent(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    finish(run)
    found = list(rows(run, load_stage_config(run.config("report"))))
    assert EXPECTED.items() <= values(found).items()
    assert ("evaluation/ocr/similarity", 2) in values(found)
    assert not any(name == "kl" for name, _ in values(found)), "not a number is not shown"
    assert [row.step for row in found if row.pictures] == [0, 2]
    assert len({row.name for row in found}) == len(found)


def test_what_is_not_enabled_is_left_alone(tmp_path: Path, notebook: Notebook) -> None:
    run = run_of(tmp_path)
    finish(run)
    assert not mirrors.has_mirrors(run)
    assert mirrors.sync(run)
    assert not notebook.openings
    assert not (run.root / "mirrors").exists()


def test_offline_all_is_made_anew_when_a_stage_began_or_ended(
    tmp_path: Path, notebook: Notebook
) -> None:
    run = run_of(tmp_path, WANDB, "tracking.wandb.project=mine", "tracking.wandb.run_name=first")
    write_record(run, "train", status="running")
    write_steps(run, range(1, 3))
    assert mirrors.sync(run)
    write_steps(run, range(3, 5))
    assert mirrors.sync(run)
    assert len(notebook.openings) == 1, "steps alone are no reason"
    write_record(run, "train")
    assert mirrors.sync(run)
    assert [row.step for row in notebook.rows] == [1, 2, 1, 2, 3, 4]
    assert notebook.closed == 2
    opening = notebook.openings[1]
    assert (opening.project, opening.run_name, opening.mode) == ("mine", "first", "offline")
    assert opening.id.startswith("run-1-")
    assert opening.parameters["algorithm.beta"] == 0.0
    assert not any(key.startswith("tracking") for key in opening.parameters)


def test_online_each_row_is_sent_once_by_whatever_process(
    tmp_path: Path, notebook: Notebook
) -> None:
    run = run_of(tmp_path, SWANLAB, ONLINE)
    write_record(run, "train", status="running")
    write_steps(run, range(1, 3))
    assert mirrors.sync(run)
    write_steps(run, range(3, 4))
    assert mirrors.sync(run)
    mirrors.close(run)
    assert notebook.closed == 1
    finish_again = write_steps  # a resumed trainer writes further steps
    finish_again(run, range(4, 5))
    assert mirrors.sync(run)
    assert [row.step for row in notebook.rows] == [1, 2, 3, 4]
    assert len(notebook.openings) == 2
    (run.root / "mirrors/swanlab.json").unlink()  # lost: all is sent again
    assert mirrors.sync(run)
    assert len(notebook.rows) == 8


def test_a_mirror_that_fails_costs_the_run_nothing(
    tmp_path: Path, notebook: Notebook, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path, WANDB)
    finish(run)
    notebook.fails = True
    assert not mirrors.sync(run)
    assert "wandb: no answer; the run goes on" in caplog.text
    notebook.fails = False
    assert not mirrors.sync(run), "it is left alone for a while"
    mirrors._left_alone_until.clear()
    assert mirrors.sync(run)


@pytest.mark.parametrize("damage", ["{", "[]", '{"sent": 5}', None])
def test_offline_a_damaged_mirror_is_made_anew(
    tmp_path: Path, notebook: Notebook, damage: str | None
) -> None:
    run = run_of(tmp_path, WANDB)
    finish(run)
    assert mirrors.sync(run)
    folder, memory = run.root / "mirrors/wandb", run.root / "mirrors/wandb.json"
    if damage is None:
        memory.unlink()
        memory.mkdir()
        shutil.rmtree(folder, ignore_errors=True)
        folder.write_text("x")
    else:
        memory.write_text(damage)
    assert mirrors.sync(run)
    assert len(notebook.openings) == 2
    assert mirrors.sync(run)
    assert len(notebook.openings) == 2
    assert not folder.is_file()


@pytest.mark.parametrize("damage", ["{", "[]", '{"sent": 5}', '{"sent": [5]}'])
def test_online_the_mend_of_a_damaged_memory_is_named(
    tmp_path: Path, notebook: Notebook, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    run = run_of(tmp_path, SWANLAB, ONLINE)
    finish(run)
    memory = run.root / "mirrors/swanlab.json"
    memory.parent.mkdir()
    memory.write_text(damage)
    assert not mirrors.sync(run)
    assert "mirrors/swanlab.json is damaged" in caplog.text
    assert "remove it, and all is sent again" in caplog.text
    assert not notebook.rows


def test_online_a_file_in_a_mirrors_place_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path, SWANLAB, ONLINE)
    finish(run)
    (run.root / "mirrors").mkdir()
    (run.root / "mirrors/swanlab").write_text("x")
    assert not mirrors.sync(run)
    assert "mirrors/swanlab is no folder; remove the file in its place" in caplog.text


def test_online_a_run_that_is_trained_again_is_another_one_there(
    tmp_path: Path, notebook: Notebook
) -> None:
    """Its steps have the numbers of those that were sent before."""
    run = run_of(tmp_path, SWANLAB, ONLINE)
    write_record(run, "train")
    write_steps(run, range(1, 3))
    assert mirrors.sync(run)
    run_of(tmp_path, SWANLAB, ONLINE, "algorithm.beta=0.5")  # resumed with another --set
    assert mirrors.sync(run)
    assert len(notebook.rows) == 2, "what is there is of the earlier configuration"
    run.train.rename(run.train.with_name("train.old-1"))
    write_record(run, "train", status="running", started=10)
    write_steps(run, range(1, 4))
    assert mirrors.sync(run)
    assert [row.step for row in notebook.rows] == [1, 2, 1, 2, 3]
    before, after = (one.id for one in notebook.openings)
    assert before != after


def test_online_training_on_other_data_is_sent(tmp_path: Path, notebook: Notebook) -> None:
    run = run_of(tmp_path, SWANLAB, ONLINE)
    identity = json.loads(written(run, "train").read_text())["identity"]
    write_steps(run, range(1, 3))
    assert mirrors.sync(run)
    run.train.rename(run.train.with_name("train.old-1"))
    written(run, "train", identity=identity | {"inputs": {"data/train.parquet": "other"}})
    write_steps(run, range(1, 3))
    assert mirrors.sync(run)
    assert [row.step for row in notebook.rows] == [1, 2, 1, 2]


def written(run: RunDirectory, stage: str, **entries: object) -> Path:
    write_record(run, stage, **entries)
    return stage_folder(run, stage) / "stage.json"


def test_online_a_session_that_broke_is_closed_and_opened_again(
    tmp_path: Path, notebook: Notebook, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path, SWANLAB, ONLINE)
    write_record(run, "train", status="running")
    write_steps(run, range(1, 2))
    assert mirrors.sync(run)
    notebook.is_broken = True
    write_steps(run, range(2, 3))
    assert not mirrors.sync(run)
    assert "swanlab: broken pipe; it was not closed" in caplog.text
    assert not mirrors._open
    mirrors._left_alone_until.clear()
    assert mirrors.sync(run)
    assert [row.step for row in notebook.rows] == [1, 2]
    assert len(notebook.openings) == 2


def test_images_are_decoded_for_the_rows_that_are_sent(
    tmp_path: Path, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def grid(files: list[Path], scale: int) -> None:
        decoded.append(files[0].parents[1].name)

    monkeypatch.setattr(sys.modules[rows.__module__], "image_grid", grid)
    monkeypatch.setattr(Notebook, "log", lambda self, row: row.images())
    run = run_of(tmp_path, SWANLAB, ONLINE)
    finish(run)
    for _ in range(3):
        assert mirrors.sync(run)
    assert decoded == ["step-000000", "step-000002"]


def test_at_the_end_each_mirror_is_brought_up_to_date_whatever_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first fails at once, and the second is held by another process for a moment."""
    run = run_of(tmp_path, WANDB, SWANLAB)
    finish(run)
    notebook, asked = Notebook(), []

    def opened(name: str, opening: Opening) -> Notebook:
        if name == "wandb":
            raise RuntimeError("no answer")
        return notebook.opened(opening)

    @contextmanager
    def hold(lock: Path) -> Iterator[int | None]:
        asked.append(lock.stem)
        yield 7 if asked.count("swanlab") == 1 and lock.stem == "swanlab" else None

    monkeypatch.setattr(mirrors, "_opened", opened)
    monkeypatch.setattr(mirrors, "hold", hold)
    mirrors.flush(run, time.monotonic() + 20)
    assert notebook.rows
    assert asked == ["wandb", "swanlab", "swanlab"]


def test_a_missing_package_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*overrides: str) -> None:
        plan(resolve("tiny/base", overrides, Path(os.devnull)))

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made()
    for name in ("wandb", "swanlab"):
        with pytest.raises(
            PlanError, match=rf"tracking\.{name}\.enabled: .*pip install .*\[{name}\]"
        ):
            made(f"tracking.{name}.enabled=true")


# With the real packages --------------------------------------------------------------------------


def records(path: Path, block: int = 32768, header: int = 7) -> Iterator[bytes]:
    """Records of a file of LevelDB's log format, as both packages write one."""
    content, whole, place = path.read_bytes(), b"", header
    while place + header <= len(content):
        left = block - place % block
        if left < header:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + header])
        whole += content[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # all of it, or its last part
            yield whole
            whole = b""


def in_wandb(folder: Path) -> dict[tuple[str, int], float]:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    found = {}
    for one in records(file):
        record = Record()
        record.ParseFromString(one)
        if record.WhichOneof("record_type") == "history":
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            step = int(row.pop("step"))
            own = {name: value for name, value in row.items() if not name.startswith("_")}
            found |= {(name, step): value for name, value in own.items()}
    return found


def in_swanlab(folder: Path) -> dict[tuple[str, int], float]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    (file,) = folder.glob("run-*/run-*.swanlab")
    found = {}
    for one in records(file):
        record = Record()
        record.ParseFromString(one)
        if record.WhichOneof("record_type") == "scalar":
            scalar = record.scalar
            found[scalar.key, scalar.step] = scalar.value.number
    return found


READERS = {"wandb": in_wandb, "swanlab": in_swanlab}


@pytest.mark.parametrize("name", READERS)
def test_the_packages_files_hold_the_run(name: str, tmp_path: Path) -> None:
    """In a process of its own, as after an outage: these packages keep much in theirs."""
    pytest.importorskip(name, reason=f"the extra {name} is not installed")
    run = run_of(tmp_path, f"tracking.{name}.enabled=true")
    finish(run)
    folder = run.root / "mirrors" / name

    def make() -> dict[tuple[str, int], float]:
        command = [sys.executable, "-m", "atelier.tracking.mirrors", str(run.root)]
        own = {"HOME": str(tmp_path), f"{name.upper()}_MODE": "online", "WANDB_PROJECT": "other"}
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        return READERS[name](folder)

    found = make()
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float)}
    assert EXPECTED.items() <= numbers.items()
    assert ("evaluation/ocr/similarity", 2) in numbers
    assert len(list(folder.rglob("*.png"))) == 2
    shutil.rmtree(run.root / "mirrors")
    assert make() == found
