"""The loop of a flow policy asks the device for nothing until it has told it all."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atelier.config.resolve import resolve
from atelier.data.prompts import Prompt
from atelier.policies.base import Sample
from atelier.policies.sd3.policy import SD3Policy
from atelier.training.distributed import World
from atelier.training.measures import WeightedMeans
from tests.support.runs import SETTINGS, untrained_pipeline

ALONE = World(0, 1, torch.device("cpu"))
SAMPLES = [Sample(i, i // 2, Prompt(i // 2, 0, "a circle")) for i in range(4)]
READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}


class Reads(TorchDispatchMode):
    """What waits for a device: values that Python is told, and masks whose size it has to know."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by = args[1] if func in INDEXING else ()
        masks = any(one is not None and one.dtype == torch.bool for one in by)
        if func in READS or masks:
            self.found[str(func)] += 1
        return func(*args, **kwargs or {})


def policy_of(*overrides: str) -> SD3Policy:
    torch.set_num_threads(1)
    settings = (f"policy.path={untrained_pipeline()}", *SETTINGS, *overrides)
    made = SD3Policy.load(resolve(recipe="tiny/base", overrides=settings), "cpu")
    made.begin_step(1)
    return made


@pytest.mark.parametrize("scope", ["step", "group"])
def test_a_replay_asks_for_nothing(scope: str) -> None:
    guided = ("rollout.guidance_scale=2", "algorithm.beta=0.01")
    policy = policy_of(f"rollout.window.scope={scope}", *guided)
    policy.prepare_reference()
    rollout = policy.rollout(policy.module, SAMPLES)
    with Reads() as reads:
        for part in policy.parts(rollout):
            policy.replay(policy.module, rollout, part, with_reference=True)
    assert reads.found == {}


def test_what_is_watched_is_asked_for_once() -> None:
    means = WeightedMeans()
    values = [torch.rand(3, 2) for _ in range(5)]
    weight = torch.rand(3, 2)
    with Reads() as reads:
        for one in values:
            means.add({"one": one, "two": -one}, weight)
    assert reads.found == {}
    sums = [float((one.double() * weight.double()).sum()) for one in values]
    total = 0.0
    for one in sums:  # in this order, as numbers that Python adds
        total += one
    assert means.over(ALONE) == {"one": total, "two": -total}
    assert WeightedMeans().over(ALONE) == {}


def test_a_mean_of_nothing_is_no_negative_zero() -> None:
    means = WeightedMeans()
    means.add({"one": torch.zeros(1, 1)}, -torch.ones(1, 1))
    assert math.copysign(1, means.over(ALONE)["one"]) == 1
