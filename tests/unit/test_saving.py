"""Training goes on while a checkpoint is written; what is announced is whole, and errors stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from atelier.errors import Stopped
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory, all_checkpoints
from atelier.training import session as module
from atelier.training.journal import Journal
from atelier.training.saving import Saving
from tests.unit.test_trainer import config, found, run_trainer

PATIENCE = 60.0


class Blocked:
    """A write that ends when it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may, self.begun, self.done = (threading.Event() for _ in range(3))
        self._error = error

    def __call__(self) -> None:
        self.begun.set()
        assert self.may.wait(PATIENCE)
        if self._error is not None:
            raise self._error
        self.done.set()


def test_a_write_is_waited_for_by_the_next_one_alone() -> None:
    first, second = Blocked(), Blocked()
    with Saving() as saving:
        saving.begin(first)
        assert first.begun.wait(PATIENCE)
        saving.check()
        threading.Timer(0.2, first.may.set).start()
        second.may.set()
        saving.begin(second)
        assert first.done.is_set()
        saving.wait()
        assert second.done.is_set()


def test_leaving_waits_whatever_happened() -> None:
    write = Blocked()
    with pytest.raises(KeyboardInterrupt), Saving() as saving:  # noqa: PT012
        saving.begin(write)
        threading.Timer(0.2, write.may.set).start()
        raise KeyboardInterrupt
    assert write.done.is_set()


@pytest.mark.parametrize("when", ["check", "wait", "begin", "leave"])
def test_what_stops_a_write_is_raised_once(when: str) -> None:
    write = Blocked(Stopped("the disk is full"))
    write.may.set()
    with pytest.raises(Stopped, match="the disk is full"), Saving() as saving:  # noqa: PT012
        saving.begin(write)
        if when == "check":
            while True:
                saving.check()
        if when == "wait":
            saving.wait()
        if when == "begin":
            saving.begin(Blocked())


def test_an_error_of_training_is_not_hidden_by_one_of_a_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = Blocked(Stopped("the disk is full"))
    write.may.set()
    with pytest.raises(ValueError, match="training"), Saving() as saving:  # noqa: PT012
        saving.begin(write)
        raise ValueError("training")
    assert "could not be written: the disk is full" in caplog.text


SIGNALLED = """
import os, signal, sys, time
from pathlib import Path
from threading import Timer
from atelier.training.saving import Saving

def write():
    Path(sys.argv[1], "begun").touch()
    time.sleep(0.5)
    Path(sys.argv[1], "whole").touch()

with Saving() as saving:
    saving.begin(write)
    while not Path(sys.argv[1], "begun").exists():
        time.sleep(0.01)
    if sys.argv[2] == "train":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    if sys.argv[2] == "wait":
        saving.wait()
    if sys.argv[2] == "begin":
        saving.begin(time.sleep)
    time.sleep(60)
    Path(sys.argv[1], "survived").touch()
"""


@pytest.mark.parametrize("meanwhile", ["train", "wait", "begin"])
def test_a_signal_waits_for_what_is_written_and_ends_the_process(
    meanwhile: str, tmp_path: Path
) -> None:
    """Also where the trainer itself is waiting for it: the last checkpoint always is."""
    command = [sys.executable, "-c", SIGNALLED, str(tmp_path), meanwhile]
    ended = subprocess.run(command, check=False)
    assert ended.returncode == -signal.SIGTERM
    assert {path.name for path in tmp_path.iterdir()} == {"begun", "whole"}


@pytest.mark.parametrize("how", ["wait", "check", "leave", "leave by an error"])
def test_a_signal_is_held_only_while_something_is_written(how: str) -> None:
    before, write = signal.getsignal(signal.SIGTERM), Blocked()
    raised = pytest.raises(ValueError, match="training") if "error" in how else nullcontext()
    with raised, Saving() as saving:
        assert signal.getsignal(signal.SIGTERM) is before
        saving.begin(write)
        saving.check()
        assert signal.getsignal(signal.SIGTERM) is not before
        write.may.set()
        if how == "wait":
            saving.wait()
        while how == "check" and signal.getsignal(signal.SIGTERM) is not before:
            saving.check()
        if "leave" not in how:
            assert signal.getsignal(signal.SIGTERM) is before
        if "error" in how:
            raise ValueError("training")
    assert signal.getsignal(signal.SIGTERM) is before


# In a run ----------------------------------------------------------------------------------------


def test_steps_are_trained_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(steps=4, checkpoint_every=2)
    whole = run_trainer(tmp_path / "whole", settings)
    trained, save, record = threading.Event(), module.save_checkpoint, Journal.step
    seen: list[int] = []

    def step(self, number: int, *rest) -> None:
        record(self, number, *rest)
        if number == 3:
            seen.append(len(all_checkpoints(self.run.checkpoints)))
            trained.set()

    def late(*arguments) -> Path:
        assert trained.wait(PATIENCE), "step 3 waits for the checkpoint of step 2"
        return save(*arguments)

    monkeypatch.setattr(Journal, "step", step)
    monkeypatch.setattr(module, "save_checkpoint", late)
    assert run_trainer(tmp_path / "late", settings) == whole
    assert seen == [0], "what is not whole has no name"
    files = [
        {path.name: path.read_bytes() for path in checkpoint.iterdir()}
        for name in ("whole", "late")
        for checkpoint in all_checkpoints(RunDirectory(tmp_path / name).checkpoints)
    ]
    assert len(files) == 4
    for one in (0, 1):
        for name in ("trainable", "ema", "optimizer"):
            file = f"{name}.safetensors"
            assert files[one][file] == files[2 + one][file]


def announced(run: RunDirectory) -> list[str]:
    events = [one for _, one in read_json_lines(run.events)]
    return [one["folder"] for one in events if one["event"] == "checkpoint"]


def test_a_checkpoint_is_announced_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole and proven; every look at the events finds the folders they name."""
    run, save, prove = RunDirectory(tmp_path), module.save_checkpoint, module.check_reload
    seen: list[list[str]] = []

    def looking(call):
        def looked(*arguments):
            seen.append(announced(run))
            result = call(*arguments)
            seen.append(announced(run))
            return result

        return looked

    monkeypatch.setattr(module, "save_checkpoint", looking(save))
    monkeypatch.setattr(module, "check_reload", looking(prove))
    run_trainer(tmp_path, config(steps=2, checkpoint_every=1))
    assert seen == [[]] * 4 + [["step-000001"]] * 4
    assert announced(run) == ["step-000001", "step-000002"]


def test_a_checkpoint_that_cannot_be_written_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = module.save_checkpoint

    def full(folder: Path, checkpoint) -> Path:
        if checkpoint.state.step == 4:
            raise Stopped("the disk is full")
        return save(folder, checkpoint)

    monkeypatch.setattr(module, "save_checkpoint", full)
    settings = config(steps=8, checkpoint_every=2)
    with pytest.raises(Stopped, match="the disk is full"):
        run_trainer(tmp_path, settings)
    run = RunDirectory(tmp_path)
    assert found(run).state.step == 2
    assert '"finished"' not in run.events.read_text()
    assert announced(run) == ["step-000002"], "nothing is said of what is not there"
    monkeypatch.setattr(module, "save_checkpoint", save)
    assert [row["step"] for row in run_trainer(tmp_path, settings)] == [*range(1, 9)]
    assert announced(run) == [f"step-{step:06d}" for step in (2, 4, 6, 8)]


def test_every_step_looks_whether_a_write_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(Saving, "check", lambda self: looks.append(1))
    run_trainer(tmp_path, config(steps=3, checkpoint_every=3))
    assert len(looks) == 3


def test_what_does_not_reload_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments) -> None:
        raise module.CheckpointError("reloaded values differ")

    monkeypatch.setattr(module, "check_reload", broken)
    with pytest.raises(module.CheckpointError, match="differ"):
        run_trainer(tmp_path, config(steps=3, checkpoint_every=1))
    assert all_checkpoints(RunDirectory(tmp_path).checkpoints) == []
