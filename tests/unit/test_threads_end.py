"""Threads of a run end with it, however it ends: the interpreter waits for those of executors."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt, write_prompts
from atelier.stages import heldout
from atelier.tracking.run_directory import RunDirectory
from atelier.training import session
from atelier.training.ema import Ema
from atelier.training.journal import Journal
from atelier.training.worker import train
from tests.support.runs import SETTINGS, make_run, untrained_pipeline

OF_A_RUN = {"images", "noise", "average"}


@pytest.fixture(autouse=True)
def _threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def started_since(before: set[threading.Thread]) -> set[str]:
    """Names of those that the interpreter waits for, without the numbers that executors give."""
    begun = {*threading.enumerate()} - before
    return {one.name.rpartition("_")[0] or one.name for one in begun if not one.daemon}


@pytest.mark.parametrize("ends", ["when all is done", "by an error"])
def test_a_trainer_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(session, "Ema", partial(_in_background, Ema))
    before, record, seen = {*threading.enumerate()}, Journal.step, set()

    def step(self: Journal, *arguments) -> None:
        seen.update(started_since(before))
        if ends == "by an error":
            raise KeyboardInterrupt
        record(self, *arguments)

    monkeypatch.setattr(Journal, "step", step)
    run = make_run(tmp_path, ["train.steps=1", "launch.threads=2"])
    stopped = pytest.raises(KeyboardInterrupt) if ends == "by an error" else nullcontext()
    with stopped as error:
        train(run.config("train"), run)
    assert seen >= OF_A_RUN, "each of them has begun"
    assert started_since(before) == set(), error  # the error's frames hold what was made


def _in_background(kind, config, weights, in_background: bool) -> Ema:
    """As on a GPU whose copies have no room there."""
    return kind(config, weights, in_background=True)


@pytest.mark.parametrize("ends", ["when all is done", "by an error"])
def test_held_out_images_leave_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    generate, before, seen = heldout._generate, {*threading.enumerate()}, set()

    def generating(*arguments):
        made = generate(*arguments)
        seen.update(started_since(before))
        if ends == "by an error":
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(heldout, "_generate", generating)
    run = RunDirectory(tmp_path)
    write_prompts(run.data / "heldout.parquet", [Prompt(0, 0, 'the word "ABE"', {"target": "ABE"})])
    stopped = pytest.raises(KeyboardInterrupt) if ends == "by an error" else nullcontext()
    with stopped as error:
        heldout.evaluate_weights(run, _config(), run.root / "baseline", weights=None)
    assert "noise" in seen
    assert started_since(before) == set(), error


def _config() -> RunConfig:
    own = [f"policy.path={untrained_pipeline()}", "launch.threads=2", "evaluation.prompts=1"]
    return resolve(recipe="tiny/base", overrides=[*SETTINGS, *own])
