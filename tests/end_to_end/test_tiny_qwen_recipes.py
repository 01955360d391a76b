"""Every recipe of the embedded Qwen-Image, a few steps of it: real pipeline, judge and trainer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from atelier.config.recipes import recipe_names, recipes_directory
from atelier.data.prompts import read_prompts
from tests.support.finished_runs import final
from tests.support.runs import make_recipe_run, metrics, train

RECIPES = [
    name
    for name in recipe_names(recipes_directory())
    if name.startswith("tiny-qwen/") and not name.endswith("/base")
]
FEW = (
    *("train.steps=3", "train.prompts_per_step=2", "rollout.group_size=4"),
    *("rollout.micro_batch_size=4", "train.evaluate_every=3", "evaluation.periodic_prompts=4"),
    *("data.train_prompts=8", "data.heldout_prompts=4", "evaluation.prompts=4"),
    *("launch.processes=1", "launch.threads=1", "launch.device=cpu"),
)


def test_there_is_a_twin_of_every_published_recipe() -> None:
    names = [one.split("/") for one in recipe_names(recipes_directory())]
    published = {
        name for folder, name in names if folder.startswith("qwen-image") and name != "base"
    }
    assert {one.split("/")[1] for one in RECIPES} == published
    assert len(published) == 3


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_on_the_embedded_pipeline(recipe: str, tmp_path: Path) -> None:
    run = make_recipe_run(tmp_path, recipe, FEW)
    train(run)
    rows = metrics(run)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["reward/valid_share"] == 1 for row in rows)
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert all(row["ratio/rollout_gap_mean"] < 1e-4 for row in rows)
    moments = final(run).optimizer.moments
    assert any(bool(one.any()) for tensors in moments.values() for one in tensors.values())
    kept = json.loads((run.step_samples(3) / "samples.json").read_text())["samples"]
    assert len(kept) == 8
    plain = {"a", "add", "remove", "replace", "change", "move", "here", "now", "the"}
    said = [one["completion"] for one in kept]
    assert sum(text.split()[0] in plain for text in said) >= 6, said
    asked = [one.text for one in read_prompts(run.data / "train.parquet")]
    assert any("the colour of" in text for text in asked), "riddles"
    assert len(list((run.train / "evaluation").rglob("*.png"))) == 4
