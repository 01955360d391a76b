"""What must not change a training run: ranks, engines, accumulation, a kill, a window."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint
from tests.support.runs import environment, make_run, metrics, train, trainer_command

DEEPSPEED = "launch.engine=deepspeed"


def final(run) -> Checkpoint:
    folder = latest_checkpoint(run.checkpoints)
    assert folder is not None
    return load_checkpoint(folder)


def assert_close(first: Checkpoint, second: Checkpoint, tolerance: float) -> None:
    assert first.weights.keys() == second.weights.keys()
    for name, value in first.weights.items():
        difference = (value - second.weights[name]).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


def assert_equal(first: Checkpoint, second: Checkpoint) -> None:
    # Offsets count bytes of timings and of the events of a second life.
    for counter in ("step", "updates", "digest"):
        assert getattr(first.state, counter) == getattr(second.state, counter)
    assert first.optimizer.updates == second.optimizer.updates
    for kind in ("weights", "ema", "rng"):
        ours, theirs = getattr(first, kind), getattr(second, kind)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), kind
    for name, moments in first.optimizer.moments.items():
        for kind, value in moments.items():
            assert torch.equal(value, second.optimizer.moments[name][kind]), (name, kind)


SETTINGS = {
    "single": (1, ()),
    "ddp-2": (2, ()),
    "zero2-2": (2, (DEEPSPEED, "launch.zero_stage=2")),
    "zero3-2": (2, (DEEPSPEED, "launch.zero_stage=3")),
}


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """A finished run of a setting, trained once for all tests that look at it."""

    @functools.cache
    def finished(setting: str) -> RunDirectory:
        processes, overrides = SETTINGS[setting]
        run = make_run(tmp_path_factory.mktemp(setting), overrides)
        train(run, processes)
        return run

    return finished


@pytest.mark.parametrize("setting", ["ddp-2", "zero2-2", "zero3-2"])
def test_ranks_and_engines_give_the_same_weights(undisturbed, setting: str) -> None:
    one = final(undisturbed("single"))
    assert_close(one, final(undisturbed(setting)), 1e-5)
    moved = max((v - one.ema[name]).abs().max().item() for name, v in one.weights.items())
    assert moved > 1e-5, "the run must have trained for the comparison to mean anything"


@pytest.mark.parametrize("setting", ["single", "ddp-2", "zero2-2"])
def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path: Path, setting: str) -> None:
    processes, overrides = SETTINGS[setting]
    whole, killed = undisturbed(setting), make_run(tmp_path, overrides)
    kill_after_a_step(killed, processes)
    train(killed, processes)
    assert_equal(final(whole), final(killed))
    assert metrics(whole) == metrics(killed)


def test_checkpoints_are_engine_neutral(undisturbed) -> None:
    """Checkpoints are engine-neutral: ZeRO-2 saves the names, shapes and values that DDP does."""
    saved = final(undisturbed("zero2-2")).optimizer
    plain = final(undisturbed("single")).optimizer
    assert saved.moments.keys() == plain.moments.keys()
    for name, moments in plain.moments.items():
        for kind, value in moments.items():
            assert torch.allclose(value, saved.moments[name][kind], atol=1e-6, rtol=1e-3)


def kill_after_a_step(run, processes: int) -> None:
    """SIGKILL the trainer and all its ranks once a first step is on disk, before the last is."""
    trainer = subprocess.Popen(
        trainer_command(run, processes),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while latest_checkpoint(run.checkpoints) is None:
        assert trainer.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait()
    # Ranks have sessions of their own and die with their agent; the lock tells when.
    wait_until_unlocked(run)
    reached = load_checkpoint(latest_checkpoint(run.checkpoints)).state.step
    assert reached < 3, "killed too late to show anything"


def wait_until_unlocked(run) -> None:
    import fcntl

    deadline = time.monotonic() + 30
    with (run.train / "lock").open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return
