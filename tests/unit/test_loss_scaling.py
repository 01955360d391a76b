"""Gradients of float16: scaled, skipped where they overflow, and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from atelier.config.sections.train import TrainConfig
from atelier.errors import Stopped
from atelier.training.checkpoint import Checkpoint, LoopState, load_checkpoint, save_checkpoint
from atelier.training.distributed import World
from atelier.training.engines import DdpEngine

RATE = 0.1


def engine(module: nn.Module, scale_loss: bool) -> DdpEngine:
    trainable = dict(module.named_parameters())
    optimizer = torch.optim.AdamW(trainable.values(), lr=0.1)
    world = World(0, 1, torch.device("cpu"))
    return DdpEngine(module, trainable, optimizer, TrainConfig(), world, scale_loss)


def half_loss(module: nn.Module, size: float) -> torch.Tensor:
    with torch.autocast("cpu", torch.float16):
        return (module(torch.ones(1, 4)).float() * size).sum()


def test_loss_scaling_saves_gradients_that_float16_cannot_hold() -> None:
    norms = []
    for scale_loss in (False, True):
        one = engine(nn.Linear(4, 1, bias=False), scale_loss)
        one.backward(half_loss(one.module, 1e-8), last=True)
        norms.append(one.step(RATE))
    assert norms[0] == 0
    assert norms[1] == pytest.approx(2e-8, rel=1e-3)


def test_an_overflow_is_skipped_and_the_scale_survives_a_checkpoint(tmp_path: Path) -> None:
    one = engine(nn.Linear(4, 1, bias=False), True)
    before = one.weights()["weight"]
    one.backward(half_loss(one.module, 10.0), last=True)  # 10 x 65536 is no float16
    assert one.step(RATE) == 0.0
    assert torch.equal(one.weights()["weight"], before)
    state = one.optimizer_state()
    assert state.updates == 0
    assert state.scaler["scale"] == 2.0**15

    saved = Checkpoint(LoopState(1, 1, "digest", 0, 0), one.weights(), None, state, {})
    loaded = load_checkpoint(save_checkpoint(tmp_path, saved)).optimizer
    other = engine(nn.Linear(4, 1, bias=False), True)
    other.load_optimizer_state(loaded)
    assert other.optimizer_state().scaler == state.scaler


def test_overflow_at_every_scale_stops_the_run() -> None:
    one = engine(nn.Linear(4, 1, bias=False), True)

    def train() -> None:
        for _ in range(30):
            one.backward(half_loss(one.module, float("inf")), last=True)
            one.step(RATE)

    with pytest.raises(Stopped, match=r"policy\.dtype: gradients overflow"):
        train()
