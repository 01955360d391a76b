"""The average of weights is the same bits, where it lies and whoever computes it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atelier.config.resolve import resolve
from atelier.config.sections.train import EmaConfig
from atelier.training import ema as module
from atelier.training.distributed import World
from atelier.training.ema import Ema, ema_decay
from atelier.training.engines import make_engine
from atelier.training.session import Session

ALONE = World(0, 1, torch.device("cpu"))
SHAPES = {"a": (5, 3), "b": (7,)}


def drawn(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


class Late:
    """A copy that is there when it may be."""

    may = threading.Event()

    def __init__(self, value: Tensor) -> None:
        self._value = value.clone()

    def wait(self) -> Tensor:
        assert self.may.wait(60)
        return self._value


@pytest.mark.parametrize("in_background", [False, True])
def test_the_average_is_that_of_one_tensor_after_the_other(
    in_background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Arriving", Late)
    Late.may.set()
    average = Ema(EmaConfig(decay=0.9), drawn(0), in_background)
    expected = drawn(0)
    for update in range(5):
        trained = drawn(update + 1)
        average.update(update, trained)
        for name, value in trained.items():
            expected[name].lerp_(value, 1 - ema_decay(update, 0.9))
            value.fill_(torch.nan)  # training goes on
    for name, value in average.weights.items():
        assert torch.equal(value, expected[name])


def test_nobody_waits_for_the_average_but_who_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Arriving", Late)
    Late.may.clear()
    average = Ema(EmaConfig(decay=0.9), drawn(0), in_background=True)
    average.update(0, drawn(1))  # returns
    found: list[dict[str, Tensor]] = []
    reader = threading.Thread(target=lambda: found.append(average.weights))
    reader.start()
    assert not found
    Late.may.set()
    reader.join(60)
    assert torch.equal(found[0]["b"], drawn(0)["b"].lerp(drawn(1)["b"], 1 - 0.1))


@pytest.mark.parametrize("then", [lambda one: one.weights, lambda one: one.update(1, drawn(2))])
def test_an_error_of_the_thread_is_that_of_the_average(then: Callable[[Ema], object]) -> None:
    average = Ema(EmaConfig(decay=0.9), drawn(0), in_background=True)
    average.update(0, {"a": torch.zeros(5, 3)})
    with pytest.raises(KeyError, match="b"):
        then(average)


@pytest.mark.parametrize("trainable", ["dit", "lora"])
def test_what_a_session_keeps_is_a_copy(trainable: str) -> None:
    config = resolve(recipe="tiny/base", overrides=[f"policy.trainable={trainable}"])
    session = Session(config, "digest", ALONE)
    linear = torch.nn.Linear(2, 2)
    trained = dict(linear.named_parameters())
    engine = make_engine(linear, trained, config.train, config.launch, ALONE)
    session.start(engine, keeps_behaviour=True)
    begun = engine.weights()
    with torch.no_grad():
        linear.weight.fill_(7.0)
    assert torch.equal(session.ema.weights["weight"], begun["weight"])
    session.samples_with_trained = False
    with session.behaviour_weights(engine):
        assert torch.equal(linear.weight, begun["weight"])
    assert (linear.weight == 7).all()
    with session.averaged_weights(engine):
        assert torch.equal(linear.weight, begun["weight"])
    assert (linear.weight == 7).all()
