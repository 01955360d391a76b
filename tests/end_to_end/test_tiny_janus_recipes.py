"""Every recipe of the embedded Janus, a few steps of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier.config.recipes import recipe_names, recipes_directory
from atelier.training.checkpoint import Checkpoint
from tests.support.few_steps import few_steps, recipes_of
from tests.support.finished_runs import final

RECIPES = recipes_of("tiny-janus")


def test_there_is_a_recipe_of_every_kind() -> None:
    kinds = {name.split("/")[1] for name in RECIPES}
    published = {"grpo", "pair-grpo", "edit", *(f"introspective-v{n}" for n in (1, 2, 3))}
    assert kinds == published
    for size in ("7b", "1b"):
        names = recipe_names(recipes_directory())
        assert {f"janus-pro-{size}/{kind}" for kind in published} <= set(names)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_on_the_embedded_model(recipe: str, tmp_path: Path) -> None:
    run, rows, kept = few_steps(recipe, tmp_path)
    checkpoint = final(run)
    assert any(bool(one.any()) for one in checkpoint.optimizer.moments[_name(checkpoint)].values())
    if "introspective" in recipe:
        answers = [one["answer"] for sample in kept for one in sample["earlier"]]
        assert len(answers) == 8
        assert all(one.startswith(("Yes", "No")) for one in answers)
        assert all(0 <= row["introspection/answer_1"] <= 1 for row in rows)
    if recipe.endswith("pair-grpo"):
        assert sum(sample["ground_truth"] for sample in kept) == 4
        truths = [one["total"] for one in kept if one["ground_truth"]]
        drawn = [one["total"] for one in kept if not one["ground_truth"]]
        assert rows[-1]["ground_truth/share"] == 0.5
        assert rows[-1]["reward/drawn"] == pytest.approx(sum(drawn) / 4, abs=1e-5)
        assert max(truths) > 0.9
        assert min(truths) < 0.1
    images = list((run.train / "evaluation").rglob("*.png"))
    assert len(images) == (8 if recipe.endswith("pair-grpo") else 4)


def _name(checkpoint: Checkpoint) -> str:
    """A parameter of the head that image tokens are drawn by."""
    head = "generation_head.vision_head.weight"
    (name,) = [one for one in checkpoint.weights if one.endswith(head)]
    return name
