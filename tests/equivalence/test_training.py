"""What must not change a training run: ranks, engines, accumulation, a kill, a window."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

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
    assert first.state == second.state
    assert first.optimizer.updates == second.optimizer.updates
    for kind in ("weights", "ema", "rng"):
        ours, theirs = getattr(first, kind), getattr(second, kind)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), kind
    for name, moments in first.optimizer.moments.items():
        for kind, value in moments.items():
            assert torch.equal(value, second.optimizer.moments[name][kind]), (name, kind)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory):
    run = make_run(tmp_path_factory.mktemp("one-rank"))
    train(run)
    return run


@pytest.mark.parametrize(
    ("processes", "overrides"),
    [
        (2, []),
        (1, [DEEPSPEED, "launch.zero_stage=2"]),
        (2, [DEEPSPEED, "launch.zero_stage=2"]),
        (2, [DEEPSPEED, "launch.zero_stage=3"]),
    ],
    ids=["ddp-2", "zero2-1", "zero2-2", "zero3-2"],
)
def test_ranks_and_engines_give_the_same_weights(
    one_rank, tmp_path: Path, processes: int, overrides: list[str]
) -> None:
    run = make_run(tmp_path, overrides)
    train(run, processes)
    assert_close(final(one_rank), final(run), 1e-5)
    moved = max(
        (value - final(one_rank).ema[name]).abs().max().item()
        for name, value in final(one_rank).weights.items()
    )
    assert moved > 1e-5, "the run must have trained for the comparison to mean anything"


@pytest.mark.parametrize(
    ("processes", "overrides"),
    [(1, []), (2, []), (2, [DEEPSPEED, "launch.zero_stage=2"])],
    ids=["single", "ddp-2", "zero2-2"],
)
def test_killed_and_resumed_equals_undisturbed(
    tmp_path: Path, processes: int, overrides: list[str]
) -> None:
    undisturbed, killed = make_run(tmp_path / "a", overrides), make_run(tmp_path / "b", overrides)
    train(undisturbed, processes)
    kill_after_a_step(killed, processes)
    train(killed, processes)
    assert_equal(final(undisturbed), final(killed))
    assert metrics(undisturbed) == metrics(killed)


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
