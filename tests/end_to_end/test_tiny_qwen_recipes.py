"""Every recipe of the embedded Qwen-Image, a few steps of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier.data.prompts import read_prompts
from tests.support.few_steps import few_steps, recipes_of
from tests.support.finished_runs import final

FIRST_WORDS = {"a", "add", "remove", "replace", "change", "move", "here", "now", "the"}


def test_there_is_a_twin_of_every_published_recipe() -> None:
    published = [*recipes_of("qwen-image"), *recipes_of("qwen-image-edit")]
    assert len(published) == 3
    assert {one.split("/")[1] for one in recipes_of("tiny-qwen")} == {
        one.split("/")[1] for one in published
    }


@pytest.mark.parametrize("recipe", recipes_of("tiny-qwen"))
def test_a_recipe_trains_on_the_embedded_pipeline(recipe: str, tmp_path: Path) -> None:
    run, _, kept = few_steps(recipe, tmp_path)
    moments = final(run).optimizer.moments
    assert any(bool(one.any()) for tensors in moments.values() for one in tensors.values())
    said = [one["completion"] for one in kept]
    assert sum(text.split()[0] in FIRST_WORDS for text in said) >= 6, said
    asked = [one.text for one in read_prompts(run.data / "train.parquet")]
    assert any("the colour of" in text for text in asked), "riddles"
    assert len(list((run.train / "evaluation").rglob("*.png"))) == 4
    words = [path.read_text() for path in (run.train / "evaluation").rglob("images/*.txt")]
    assert len(words) == 4
    assert all(words)
