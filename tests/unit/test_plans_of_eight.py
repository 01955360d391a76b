"""The recipes for eight GPUs can be planned by every engine, and say what each shares out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier.config.memory.estimate import Memory
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.errors import PlanError

GIBIBYTE = 2**30
ENGINES = {
    "ddp": ("launch.engine=ddp",),
    "zero2": ("launch.engine=deepspeed", "launch.zero_stage=2"),
    "zero3": ("launch.engine=deepspeed", "launch.zero_stage=3"),
}
H200 = 139 * GIBIBYTE


def planned(recipe: str, engine: str) -> Memory:
    own = ["launch.processes=8", *ENGINES[engine]]
    made = plan(resolve(recipe, own, Path(os.devnull)))
    assert made.processes == 8
    assert made.memory is not None  # of the published model
    return made.memory


@pytest.mark.parametrize("recipe", ["sd35m/flow-grpo-fast", "deepgen/mr-grpo"])
def test_what_each_engine_shares_out_is_an_eighth(recipe: str) -> None:
    ddp, zero2, zero3 = (planned(recipe, engine).held for engine in ENGINES)
    trained = ddp["gradients"] // 4
    assert ddp["buckets"] == ddp["gradients"]
    assert ddp["optimizer"] == 8 * trained
    for sharded in (zero2, zero3):
        assert sharded["gradients"] == pytest.approx(ddp["gradients"] / 8, rel=1e-6)
        assert sharded["optimizer"] == pytest.approx(12 * trained / 8, rel=1e-6)
    assert zero2["base"] == ddp["base"]
    assert zero3["base"] == pytest.approx(ddp["base"] / 8, rel=1e-6)
    assert all(planned(recipe, engine).peak < H200 for engine in ENGINES)


def test_seven_billion_fit_by_zero2_alone() -> None:
    recipe = "janus-pro-7b/pair-grpo"
    assert planned(recipe, "zero2").peak < H200 < planned(recipe, "ddp").peak
    with pytest.raises(PlanError, match="3 would gather the weights for every token; use 2, or"):
        planned(recipe, "zero3")
