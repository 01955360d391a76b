"""Verdicts about pictures: those of the gold check, and reasons that name what is wrong."""

import random

import pytest

from atelier.data.gold import check
from atelier.data.questions import altered
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject, facts, sample_scene
from atelier.data.verdicts import held, verdict

RED, BLUE = SceneObject("circle", "red", (0, 1)), SceneObject("square", "blue", (2, 1))


def test_what_a_faultless_picture_shows_is_what_the_gold_check_finds() -> None:
    for number in range(150):
        rng = random.Random(number)
        scene = sample_scene(rng, "shapes")
        for shown in (scene, altered(scene, rng), sample_scene(rng, "shapes")):
            assert held(scene, shown) == check(render(shown), scene).facts, (scene, shown)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ((RED, BLUE), "Yes"),
        ((RED,), "No, not one blue square."),
        ((RED, SceneObject("circle", "red", (0, 0)), BLUE), "No, not one red circle."),
        ((RED, BLUE, SceneObject("cross", "green", (1, 1))), "No, there is more."),
        (
            (SceneObject("circle", "red", (2, 1)), SceneObject("square", "blue", (0, 1))),
            "No, the red circle is not above the blue square.",
        ),
    ],
)
def test_the_reason_is_the_first_fact_that_does_not_hold(
    shown: tuple[SceneObject, ...], said: str
) -> None:
    scene = Scene((RED, BLUE))
    assert verdict(scene, held(scene, Scene(shown))) == said


def test_every_fact_of_every_scene_has_a_reason() -> None:
    for kind in ("word", "shapes", "mixed"):
        for number in range(30):
            scene = sample_scene(random.Random(number), kind)
            for missing in facts(scene):
                said = verdict(scene, {name: name != missing for name in facts(scene)})
                assert said.startswith("No, ")
                assert said.endswith(".")
            assert verdict(scene, dict.fromkeys(facts(scene), True)) == "Yes"
