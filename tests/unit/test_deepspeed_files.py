"""configs/deepspeed: four files, and which one a run has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from atelier.config.paths import repository_root
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.train import TrainConfig
from atelier.errors import PlanError
from atelier.training.engines import deepspeed_file, read_deepspeed_config

FOLDER = repository_root() / "configs" / "deepspeed"
FILES = {
    "zero2.json": {},
    "zero3.json": {"zero_stage": 3},
    "zero3_offload.json": {"zero_stage": 3, "offload": True},
    "zero3_sd3.json": {"zero_stage": 3, "zero_tuning": "sd3"},
}


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_some_runs(name: str) -> None:
    launch = LaunchConfig(engine="deepspeed", **FILES[name])
    assert deepspeed_file(launch) == FOLDER / name


def test_there_are_no_others() -> None:
    assert {path.name for path in FOLDER.iterdir()} == FILES.keys()


@pytest.mark.parametrize("name", FILES)
def test_batch_sizes_are_the_runs_and_in_no_file(name: str) -> None:
    """Two of the published ones fix them, and abort wherever they are others."""
    written: dict[str, Any] = json.loads((FOLDER / name).read_text())
    assert not any("batch" in key for key in written)
    read = read_deepspeed_config(FOLDER / name, TrainConfig(max_grad_norm=0.5))
    assert read["gradient_clipping"] == 0.5
    assert read["zero_optimization"]["stage"] == int(name[4])


def test_the_one_for_sd3_gathers_a_block_and_keeps_every_vector() -> None:
    """Blocks of SD3.5-Medium: 4 h^2 of each attention, 8 h^2 of each feed-forward, and 6 or 9 h^2
    of each modulation, whose bias is the longest vector."""
    width = 1536
    block = (4 + 4 + 4 + 8 + 8 + 9 + 6) * width**2
    zero = json.loads((FOLDER / "zero3_sd3.json").read_text())["zero_optimization"]
    assert block <= zero["stage3_prefetch_bucket_size"] < 1.1 * block
    assert zero["stage3_max_live_parameters"] >= 3 * block
    assert 9 * width <= zero["stage3_param_persistence_threshold"] < width * 64


def test_it_is_refused_with_offload_and_does_nothing_elsewhere() -> None:
    def made(*overrides: str):
        return plan(resolve("tiny/base", overrides, Path(os.devnull)))

    zero = ("launch.engine=deepspeed", "launch.zero_stage=3", "launch.zero_tuning=sd3")
    assert not any("zero_tuning" in one for one in made(*zero).warnings)
    with pytest.raises(PlanError, match=r"launch\.zero_tuning: sd3 is without launch\.offload"):
        made(*zero, "launch.offload=true")
    assert any("launch.zero_tuning: does nothing" in one for one in made(zero[2]).warnings)
