"""The rank that writes a checkpoint alone holds what is written: all ranks take part in it."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path

import pytest
import torch
from torch import nn

from atelier.config.resolve import resolve
from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.train import TrainConfig
from atelier.errors import Stopped
from atelier.tracking.run_directory import RunDirectory
from atelier.training.distributed import World
from atelier.training.engines import OptimizerState, make_engine
from atelier.training.journal import Journal
from atelier.training.session import Session
from tests.support.ranks import on_ranks

ENGINES = {
    "ddp": LaunchConfig(device="cpu"),
    "zero2": LaunchConfig(device="cpu", engine="deepspeed", zero_stage=2),
    "zero3": LaunchConfig(device="cpu", engine="deepspeed", zero_stage=3),
}


def held(world: World) -> dict[str, list[list[str]]]:
    """Names of weights and of moments that a rank has, by engine, after an update."""
    return {name: _held(launch, world) for name, launch in ENGINES.items()}


def _held(launch: LaunchConfig, world: World) -> list[list[str]]:
    module = nn.Linear(3, 5)
    engine = make_engine(module, dict(module.named_parameters()), TrainConfig(), launch, world)
    with engine.accumulate(True):
        engine.backward(engine.module(torch.ones(2, 3)).sum(), True)
    engine.step(1e-3)
    weights = engine.weights(wanted=world.is_main)
    state = engine.optimizer_state(world.is_main)
    assert all(one.shape == module_shape(name) for name, one in weights.items())
    return [sorted(weights), sorted(state.moments)]


def module_shape(name: str) -> torch.Size:
    return nn.Linear(3, 5).get_parameter(name).shape


@pytest.fixture(scope="module")
def of_ranks() -> list[dict[str, list[list[str]]]]:
    return on_ranks(held, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_does_not_want_them_holds_none(of_ranks, engine: str) -> None:
    main, other = (found[engine] for found in of_ranks)
    assert main == [["bias", "weight"], ["bias", "weight"]]
    assert other == [[], []]


class Asked:
    """An engine that only notes whether its tensors are wanted."""

    def __init__(self) -> None:
        self.wanted: list[bool] = []

    def weights(self, device=None, wanted=True):
        self.wanted.append(wanted)
        return {}

    def optimizer_state(self, wanted=True):
        self.wanted.append(wanted)
        return OptimizerState(0, {})


def test_a_rank_that_does_not_write_wants_nothing(tmp_path: Path) -> None:
    other, engine = World(1, 1, torch.device("cpu")), Asked()
    session = Session(resolve("tiny/base", []), "digest", other)
    session.save(engine, None, None, Journal(RunDirectory(tmp_path), other))
    assert engine.wanted == [False, False]


def told_of_a_full_disk(world: World) -> list[str]:
    """What each rank raises where the first one's checkpoint could not be written."""
    session = Session(resolve("tiny/flow-grpo-fast", []), "identity", world)
    seen = []
    for look in (session.check_saving, session.wait_for_saving):
        if world.is_main:
            session.saving.begin(_full)
            wait([session.saving._writing])
        try:
            look()
            look()
        except Stopped as stop:
            seen.append(str(stop))
    look()  # it is told once
    return seen


def _full() -> None:
    raise Stopped("the disk is full")


def test_every_rank_stops_with_the_reason_of_the_one_that_writes() -> None:
    """One that went on would wait for the others, and end with words that say nothing."""
    assert on_ranks(told_of_a_full_disk, 2) == [["the disk is full"] * 2] * 2
