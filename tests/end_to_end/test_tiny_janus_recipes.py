"""Every recipe of the embedded Janus, a few steps of it: real model, real judge, real trainer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from atelier.config.recipes import recipe_names, recipes_directory
from atelier.training.checkpoint import Checkpoint
from tests.support.finished_runs import final
from tests.support.runs import make_recipe_run, metrics, train

RECIPES = [
    name
    for name in recipe_names(recipes_directory())
    if name.startswith("tiny-janus/") and not name.endswith("/base")
]
FEW = (
    *("train.steps=3", "train.prompts_per_step=2", "rollout.group_size=4"),
    *("rollout.micro_batch_size=4", "train.evaluate_every=3", "evaluation.periodic_prompts=4"),
    *("data.train_prompts=8", "data.heldout_prompts=4", "evaluation.prompts=4"),
    *("launch.processes=1", "launch.threads=1", "launch.device=cpu"),
)


def test_there_is_a_recipe_of_every_kind() -> None:
    kinds = {name.split("/")[1] for name in RECIPES}
    published = {"grpo", "pair-grpo", "edit", *(f"introspective-v{n}" for n in (1, 2, 3))}
    assert kinds == published
    for size in ("7b", "1b"):
        names = recipe_names(recipes_directory())
        assert {f"janus-pro-{size}/{kind}" for kind in published} <= set(names)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_on_the_embedded_model(recipe: str, tmp_path: Path) -> None:
    run = make_recipe_run(tmp_path, recipe, FEW)
    train(run)
    rows = metrics(run)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["reward/valid_share"] == 1 for row in rows)
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert all(row["ratio/rollout_gap_mean"] < 1e-4 for row in rows)
    checkpoint = final(run)
    assert any(bool(one.any()) for one in checkpoint.optimizer.moments[_name(checkpoint)].values())
    kept = json.loads((run.step_samples(3) / "samples.json").read_text())["samples"]
    assert len(kept) == 8
    if "introspective" in recipe:
        answers = [one["answer"] for sample in kept for one in sample["earlier"]]
        assert len(answers) == 8
        assert all(one.startswith(("Yes", "No")) for one in answers)
        assert all(0 <= row["introspection/answer_1"] <= 1 for row in rows)
    if recipe.endswith("pair-grpo"):
        assert sum(sample["ground_truth"] for sample in kept) == 4
        truths = [one["total"] for one in kept if one["ground_truth"]]
        assert max(truths) > 0.9
        assert min(truths) < 0.1
    images = list((run.train / "evaluation").rglob("*.png"))
    assert len(images) == (8 if recipe.endswith("pair-grpo") else 4)


def _name(checkpoint: Checkpoint) -> str:
    """A parameter of the head that image tokens are drawn by."""
    head = "generation_head.vision_head.weight"
    (name,) = [one for one in checkpoint.weights if one.endswith(head)]
    return name
