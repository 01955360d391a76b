"""Every engine computes in what its caller's autocast says, or it would train another function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.train import TrainConfig
from atelier.training.distributed import World
from atelier.training.engines import make_engine
from tests.support.ranks import on_ranks

ENGINES = {
    "ddp": LaunchConfig(device="cpu"),
    "zero2": LaunchConfig(device="cpu", engine="deepspeed", zero_stage=2),
    "zero3": LaunchConfig(device="cpu", engine="deepspeed", zero_stage=3),
}


def computed(world: World) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """By engine and dtype: that of a linear layer's output, and that of its gradient."""
    # As under a GPU's autocast, which is what DeepSpeed looks for before it ends any.
    torch.set_autocast_enabled("cuda", True)
    try:
        return {
            f"{name} {dtype}": _computed(launch, dtype, world)
            for name, launch in ENGINES.items()
            for dtype in ("float32", "bfloat16")
        }
    finally:
        torch.set_autocast_enabled("cuda", False)


def _computed(launch, dtype, world: World) -> tuple[torch.dtype, torch.dtype]:
    torch.manual_seed(0)
    module = nn.Linear(8, 8)
    weights = dict(module.named_parameters())
    engine = make_engine(module, weights, TrainConfig(), launch, world, dtype)
    summed: list[Tensor] = []
    weights["weight"].register_hook(summed.append)
    low = dtype != "float32"
    with torch.autocast("cpu", getattr(torch, dtype), enabled=low), engine.accumulate(True):
        found = engine.module(torch.ones(2, 8))
        engine.backward(found.float().sum(), True)
    engine.step(1e-3)
    return found.dtype, summed[0].dtype


@pytest.fixture(scope="module")
def of_ranks() -> list[dict[str, tuple[torch.dtype, torch.dtype]]]:
    return on_ranks(computed, 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_leaves_the_callers_autocast(of_ranks, engine: str, dtype: str) -> None:
    for found in of_ranks:
        assert found[f"{engine} {dtype}"] == (getattr(torch, dtype), torch.float32)
