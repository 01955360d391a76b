"""Finished training runs, compared; and runs that are killed before they are."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint
from tests.support.runs import metrics, start, train

Make = Callable[[Path, str], tuple[RunDirectory, int]]
"""A run of a setting in a folder, and its number of ranks."""


def undisturbed_runs(make: Make, folders: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """The finished run of a setting, trained once for all that look at it."""

    @functools.cache
    def finished(setting: str) -> RunDirectory:
        run, processes = make(folders.mktemp(setting), setting)
        train(run, processes)
        return run

    return finished


def require_a_kill_changes_nothing(
    make: Make, folder: Path, setting: str, whole: RunDirectory
) -> RunDirectory:
    """Train a setting, killed on its way and resumed, compare it with `whole`, and return it."""
    killed, processes = make(folder, setting)
    kill_after_a_step(killed, processes)
    train(killed, processes)
    assert_equal(final(whole), final(killed))
    assert metrics(whole) == metrics(killed)
    return killed


def final(run: RunDirectory) -> Checkpoint:
    folder = latest_checkpoint(run.checkpoints)
    assert folder is not None
    return load_checkpoint(folder)


def samples(run: RunDirectory) -> dict[str, bytes]:
    """The best and worst images of the last step, as they are on disk."""
    return {path.name: path.read_bytes() for path in run.step_samples(3).iterdir()}


def largest(tensors: Iterable[torch.Tensor]) -> float:
    return max(tensor.abs().max().item() for tensor in tensors)


def assert_equal(first: Checkpoint, second: Checkpoint) -> None:
    # Offsets count bytes of timings and of the events of a second life.
    for counter in ("step", "updates", "digest"):
        assert getattr(first.state, counter) == getattr(second.state, counter)
    assert first.optimizer.updates == second.optimizer.updates
    assert first.optimizer.scaler == second.optimizer.scaler
    for kind in ("weights", "ema", "rng", "behaviour"):
        ours, theirs = getattr(first, kind) or {}, getattr(second, kind) or {}
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items()), kind
    for name, moments in first.optimizer.moments.items():
        for kind, value in moments.items():
            assert torch.equal(value, second.optimizer.moments[name][kind]), (name, kind)


def kill_after_a_step(run: RunDirectory, processes: int) -> None:
    """SIGKILL all ranks once a first step is on disk, before the last is."""
    ranks = start(run, processes)
    deadline = time.monotonic() + 120
    while latest_checkpoint(run.checkpoints) is None:
        assert ranks.are_running, ranks.output[-5000:]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    ranks.kill()
    reached = load_checkpoint(latest_checkpoint(run.checkpoints)).state.step
    assert reached < 3, "killed too late to show anything"
