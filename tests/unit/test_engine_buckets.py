"""A sum over ranks has the same bits in the first pass of a life and in every later one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.train import TrainConfig
from atelier.training.distributed import World
from atelier.training.engines import make_engine
from tests.support.ranks import on_ranks

RANKS = 4  # of two, a sum has no order
WIDTH = 61


class Backwards(nn.Module):
    """Layers that are used in another order than they are registered in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, rows: Tensor) -> Tensor:
        for layer in reversed(self.layers):
            rows = layer(rows).tanh()
        return rows


def gradients(world: World) -> list[Tensor]:
    """Of three passes over the same rows [3, parameters]; no weight changes."""
    torch.manual_seed(0)
    module = Backwards()
    weights = dict(module.named_parameters())
    engine = make_engine(module, weights, TrainConfig(), LaunchConfig(device="cpu"), world)
    assert all(one.grad is None for one in weights.values())
    torch.manual_seed(world.rank)
    rows, found = torch.randn(8, WIDTH), []
    for _ in range(3):
        with engine.accumulate(True):
            engine.backward(engine.module(rows).square().sum(), True)
        found.append(torch.cat([one.grad.flatten() for one in weights.values()]))
        module.zero_grad(set_to_none=True)
    return found


def test_every_pass_sums_in_the_same_order() -> None:
    for found in on_ranks(gradients, RANKS):
        assert found[0].any()
        assert all(torch.equal(found[0], later) for later in found[1:])
