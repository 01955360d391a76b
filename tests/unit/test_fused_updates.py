"""AdamW by torch's own kernel, as on GPUs: the same updates, and resumed to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.train import TrainConfig
from atelier.training import engines
from atelier.training.distributed import World
from atelier.training.engines import DdpEngine, Engine, make_engine, make_optimizer
from tests.support.ranks import on_ranks

ENGINES = {
    "ddp": LaunchConfig(device="cpu"),
    "zero2": LaunchConfig(device="cpu", engine="deepspeed", zero_stage=2),
    "zero3": LaunchConfig(device="cpu", engine="deepspeed", zero_stage=3),
}
Weights = dict[str, Tensor]


def engine_of(launch: LaunchConfig, world: World, weights: Weights | None = None) -> Engine:
    torch.manual_seed(0)
    module = nn.Linear(3, 5)
    if weights is not None:
        module.load_state_dict(weights)
    return make_engine(module, dict(module.named_parameters()), TrainConfig(), launch, world)


def train(engine: Engine, steps: range, world: World) -> None:
    for step in steps:
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + world.rank))
        with engine.accumulate(True):
            engine.backward(engine.module(x).square().mean(), True)
        engine.step(1e-2)


def updated(world: World) -> dict[str, tuple[Weights, Weights, Weights]]:
    """By engine: weights after four updates as usual, after four fused ones, and after two and two
    with a checkpoint between them."""
    found = {}
    for name, launch in ENGINES.items():
        usual = engine_of(launch, world)
        train(usual, range(4), world)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engines, "make_optimizer", _fused)
            fused, cut = engine_of(launch, world), engine_of(launch, world)
            train(fused, range(4), world)
            train(cut, range(2), world)
            resumed = engine_of(launch, world, cut.weights())
            resumed.load_optimizer_state(cut.optimizer_state())
            assert cut.optimizer_state().updates == resumed.optimizer_state().updates == 2
            train(resumed, range(2, 4), world)
        found[name] = (usual.weights(), fused.weights(), resumed.weights())
    return found


def _fused(trainable, train: TrainConfig, fused: bool) -> torch.optim.AdamW:
    return make_optimizer(trainable, train, fused=True)


@pytest.fixture(scope="module")
def of_ranks() -> list[dict[str, tuple[Weights, Weights, Weights]]]:
    return on_ranks(updated, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_fused_updates_are_the_usual_ones_and_are_resumed(of_ranks, engine: str) -> None:
    for found in of_ranks:
        usual, fused, resumed = found[engine]
        for name, value in fused.items():
            torch.testing.assert_close(value, usual[name], rtol=1e-5, atol=1e-7)
            assert torch.equal(resumed[name], value)


def test_an_overflow_is_skipped() -> None:
    """By the kernel itself, which a scaler tells of it."""
    module = nn.Linear(4, 1, bias=False)
    trainable, world = dict(module.named_parameters()), World(0, 1, torch.device("cpu"))
    optimizer = make_optimizer(trainable, TrainConfig(), fused=True)
    engine = DdpEngine(module, trainable, optimizer, TrainConfig(), world, scale_loss=True)
    before = engine.weights()["weight"]
    engine.backward(module(torch.full((1, 4), float("inf"))).sum(), last=True)
    assert engine.step(0.1) == 0.0
    assert torch.equal(engine.weights()["weight"], before)
    assert engine.optimizer_state().updates == 0
    engine.backward(module(torch.ones(1, 4)).sum(), last=True)
    assert engine.step(0.1) > 0
    assert engine.optimizer_state().updates == 1
    assert engine.weights()["weight"].isfinite().all()


@pytest.mark.parametrize(("places", "fused"), [("00", True), ("0c", False), ("cc", False)])
def test_what_lies_on_gpus_is_updated_by_it(
    monkeypatch: pytest.MonkeyPatch, places: str, fused: bool
) -> None:
    class Somewhere(nn.Parameter):
        is_cuda = False

    class OnGpu(nn.Parameter):
        is_cuda = True

    told = []

    def noted(trainable, train, fused: bool):
        told.append(fused)
        return make_optimizer(trainable, train, fused=False)

    monkeypatch.setattr(engines, "make_optimizer", noted)
    trainable = {
        f"{i}": (OnGpu if place == "0" else Somewhere)(torch.zeros(1))
        for i, place in enumerate(places)
    }
    world = World(0, 1, torch.device("cpu"))
    make_engine(nn.Identity(), trainable, TrainConfig(), LaunchConfig(device="cpu"), world)
    assert told == [fused]
