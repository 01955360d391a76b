"""Test points of scenes: which there are, what the checker says of them, and what a judge says."""

from __future__ import annotations

import random

import numpy as np
import pytest

from atelier.config.paths import repository_root
from atelier.data.point_rows import points_of
from atelier.data.prompts import Prompt
from atelier.data.questions import altered
from atelier.data.render import render
from atelier.data.scene_points import (
    COLOUR,
    LAYOUT,
    QUANTITY,
    SHAPE,
    TEXT,
    gold_verdicts,
    scene_points,
)
from atelier.data.scenes import Scene, SceneObject, Word, sample_scene, to_dict
from atelier.errors import DataError

TWO = Scene(tuple(SceneObject("circle", "red", (row, 0)) for row in (0, 2)))
ABOVE = Scene((SceneObject("circle", "red", (0, 1)), SceneObject("square", "blue", (2, 1))))
BESIDE = Scene((SceneObject("cross", "green", (0, 1)),), Word("KEM", "red"))


def drawn(scene: Scene, size: int = 64):
    return np.asarray(render(scene, random.Random(3), size=size))


def verdicts(shown: Scene, asked: Scene) -> dict[str, bool]:
    """By name and description."""
    points = scene_points(asked)
    found = zip(points, gold_verdicts(drawn(shown), asked), strict=True)
    return {f"{one.name}: {one.description}": holds for one, holds in found}


def test_points_of_each_kind_of_scene() -> None:
    assert [(one.name, one.description) for one in scene_points(TWO)] == [
        (QUANTITY, "two red circles"),
        (COLOUR, "red, of a circle"),
        (SHAPE, "a circle"),
    ]
    assert [one.name for one in scene_points(ABOVE)] == [COLOUR, SHAPE, COLOUR, SHAPE, LAYOUT]
    assert [one.name for one in scene_points(BESIDE)] == [
        *(TEXT, COLOUR, QUANTITY, COLOUR, SHAPE),
        LAYOUT,
    ]
    assert (
        scene_points(BESIDE)[-1].question == "Is the word below the green cross? Answer yes or no."
    )


@pytest.mark.parametrize("kind", ["word", "shapes", "mixed"])
def test_a_faultless_picture_shows_every_point(kind) -> None:
    for seed in range(40):
        scene = sample_scene(random.Random(seed), kind)
        assert all(gold_verdicts(drawn(scene), scene)), scene
        assert not any(gold_verdicts(np.full((64, 64, 3), 255, np.uint8), scene))


def test_what_is_wrong_costs_its_own_points_alone() -> None:
    green = Scene(tuple(SceneObject("circle", "green", (row, 0)) for row in (0, 2)))
    assert verdicts(green, TWO) == {
        f"{QUANTITY}: two red circles": False,
        f"{COLOUR}: red, of a circle": False,
        f"{SHAPE}: a circle": True,
    }
    assert verdicts(Scene(TWO.objects[:1]), TWO) == {
        f"{QUANTITY}: two red circles": False,
        f"{COLOUR}: red, of a circle": True,
        f"{SHAPE}: a circle": True,
    }
    below = Scene((SceneObject("circle", "red", (2, 1)), SceneObject("square", "blue", (0, 1))))
    wrong = [name for name, holds in verdicts(below, ABOVE).items() if not holds]
    assert wrong == [f"{LAYOUT}: a red circle above a blue square"]
    misspelt = Scene(BESIDE.objects, Word("KEN", "red"))
    wrong = [name for name, holds in verdicts(misspelt, BESIDE).items() if not holds]
    assert wrong == [f'{TEXT}: the word "KEM"']
    ink = Scene(BESIDE.objects, Word("KEM", "blue"))
    wrong = [name for name, holds in verdicts(ink, BESIDE).items() if not holds]
    assert wrong == [f"{COLOUR}: the word in red"]


def test_the_embedded_judge_agrees_with_the_checker_point_by_point() -> None:
    from atelier.judge.forms import YesNoForm
    from atelier.judge.questions import Question
    from atelier.judge_models.local import LocalJudge
    from atelier.rewards.images import pil_images

    judge = LocalJudge(repository_root() / "assets/tiny-judge", "cpu")
    questions, gold = [], []
    for seed in range(60):
        rng = random.Random(seed)
        asked = sample_scene(rng, ("word", "shapes", "mixed")[seed % 3])
        image = drawn(altered(asked, rng) if seed % 2 else asked)
        gold += gold_verdicts(image, asked)
        (picture,) = pil_images(image[None])
        questions += [Question(one.question, YesNoForm(), [picture]) for one in scene_points(asked)]
    said = [one.numbers["p_yes"] > 0.5 for one in judge.ask(questions)]
    assert 0.5 < sum(gold) / len(gold) < 0.95
    agree = sum(one == two for one, two in zip(said, gold, strict=True)) / len(gold)
    assert agree > 0.95


def test_points_of_a_row_are_those_of_its_file_or_of_its_scene() -> None:
    named = {"testpoints": ["风格"], "descriptions": ["水墨画"], "scene": to_dict(TWO)}
    assert [one.description for one in points_of(Prompt(0, 0, "x", named))] == ["水墨画"]
    assert points_of(Prompt(0, 0, "x", {"scene": to_dict(TWO)})) == scene_points(TWO)
    assert points_of(Prompt(0, 0, "x", {})) == []


@pytest.mark.parametrize(
    "metadata",
    [
        {"testpoints": ["Style"]},
        {"testpoints": ["Style"], "descriptions": []},
        {"testpoints": ["Colour"], "descriptions": ["x"]},
        {"testpoints": 3, "descriptions": ["x"]},
        {"testpoints": [None], "descriptions": ["x"]},
    ],
)
def test_a_row_whose_points_are_none_is_named(metadata) -> None:
    with pytest.raises(DataError, match=r"prompt 7: .*test points"):
        points_of(Prompt(7, 0, "x", metadata))
