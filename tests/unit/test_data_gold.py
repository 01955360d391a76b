"""The gold check: full marks for true renders, none for noise, each attribute its own fact."""

import io
import random
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter

from atelier.data.gold import check, check_batch
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject, Word, facts, sample_scene
from atelier.errors import DataError
from tests.support.patience import calls_of

KINDS = ("word", "shapes", "mixed")


def _renders(kind, count=128, **options):
    scenes = [sample_scene(random.Random(seed), kind, **options) for seed in range(count)]
    return [render(scene, random.Random(seed)) for seed, scene in enumerate(scenes)], scenes


def _mean(images, scenes):
    return np.mean([result.score for result in check_batch(images, scenes)])


def _blurred(image):
    return image.filter(ImageFilter.GaussianBlur(0.7))


def _compressed(image):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=50)
    return Image.open(buffer)


@pytest.mark.parametrize("kind", KINDS)
def test_true_renders_pass(kind):
    assert _mean(*_renders(kind)) >= 0.98


@pytest.mark.parametrize("length", [2, 4, 5])
def test_words_of_every_length_pass(length):
    assert _mean(*_renders("word", 64, word_length=length)) >= 0.98


@pytest.mark.parametrize("damage", [_blurred, _compressed])
@pytest.mark.parametrize("kind", KINDS)
def test_soft_decodes_still_pass(kind, damage):
    images, scenes = _renders(kind)
    assert _mean([damage(image) for image in images], scenes) >= 0.9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [64, 8])
def test_noise_fails(kind, cells):
    generator = np.random.default_rng(0)
    _, scenes = _renders(kind, 64)
    noise = [
        Image.fromarray(generator.integers(0, 256, (cells, cells, 3)).astype(np.uint8)).resize(
            (64, 64)
        )
        for _ in scenes
    ]
    assert _mean(noise, scenes) < 0.02


@pytest.mark.parametrize("paper", ["white", "black", "grey", "red"])
def test_empty_pictures_hold_no_fact(paper):
    for kind in KINDS:
        assert _mean([Image.new("RGB", (64, 64), paper)] * 16, _renders(kind, 16)[1]) == 0


def test_each_wrong_attribute_fails_its_own_fact():
    word = Scene(word=Word("KEM", "red"))
    cases = [
        (word, Scene(word=Word("KEM", "blue")), {"word colour"}),
        (word, Scene(word=Word("KEN", "red")), {"letter 3"}),
        (word, Scene(word=Word("KE", "red")), {"letter 3", "letters"}),
        (word, Scene(word=Word("KEMP", "red")), {"letters"}),
    ]
    circle, square = SceneObject("circle", "red", (0, 0)), SceneObject("square", "blue", (2, 0))
    shapes = Scene((circle, square))
    cases += [
        (shapes, Scene((circle, replace(square, cell=(0, 2)))), {"relation"}),
        (
            shapes,
            Scene((circle, replace(square, colour="green"))),
            {"blue square", "relation"},
        ),
        (
            shapes,
            Scene((circle, square, replace(square, cell=(1, 1)))),
            {"blue square", "objects", "relation"},
        ),
    ]
    below = Scene(tuple(replace(circle, cell=(2, column)) for column in (0, 1)), Word("KEM", "red"))
    above = Scene(tuple(replace(circle, cell=(0, column)) for column in (0, 1)), Word("KEM", "red"))
    cases += [(below, above, {"word relation"})]
    for asked, shown, wrong in cases:
        result = check(render(shown), asked)
        assert {name for name, held in result.facts.items() if not held} == wrong
        assert result.facts.keys() == facts(asked).keys()
        assert result.score == pytest.approx(1 - len(wrong) / len(result.facts))


def test_scribble_beside_a_word_costs_the_letter_count():
    scene = Scene(word=Word("KEM", "red"))
    pixels = np.asarray(render(scene)).copy()
    pixels[2:6, 2:40] = (0, 0, 0)
    result = check(pixels, scene)
    assert not result.facts["letters"]
    assert "?" in result.text


def test_larger_pictures_are_checked_alike():
    scene = Scene(word=Word("KEM", "purple"))
    assert check(render(scene, size=128), scene).score == 1


def test_a_picture_takes_fewer_calls_than_pixels():
    images, scenes = _renders("mixed", 32)
    assert calls_of(lambda: check_batch(images, scenes)) < 32 * 2500


@pytest.mark.parametrize("shape", [(64, 64), (3, 64, 64)])
def test_other_arrays_are_refused(shape):
    with pytest.raises(DataError, match=r"uint8 \[H, W, 3\]"):
        check(np.zeros(shape, np.uint8), Scene(word=Word("KEM", "red")))
