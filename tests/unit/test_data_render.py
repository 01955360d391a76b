"""Renders: pure functions of scene and seed, cheap, and read without loss by the OCR recogniser."""

import random

import numpy as np
import pytest

from atelier.data.render import INKS, PAPER, render, render_batch
from atelier.data.scenes import COLOURS, Scene, SceneObject, Word, sample_scene
from atelier.errors import DataError
from tests.support.patience import calls_of


def _word_scenes(count):
    return [sample_scene(random.Random(seed), "word") for seed in range(count)]


@pytest.mark.parametrize("kind", ["word", "shapes", "mixed"])
def test_a_batch_equals_single_renders(kind):
    scenes = [sample_scene(random.Random(seed), kind) for seed in range(20)]
    batch = render_batch(scenes, range(20))
    assert batch.shape == (20, 64, 64, 3)
    assert batch.dtype == np.uint8
    for seed, scene in enumerate(scenes):
        np.testing.assert_array_equal(batch[seed], np.asarray(render(scene, random.Random(seed))))


def test_jitter_comes_from_the_generator_only():
    scene = Scene(word=Word("KEM", "red"))
    pictures = {render(scene, random.Random(seed)).tobytes() for seed in range(30)}
    assert len(pictures) > 15
    assert render(scene).tobytes() == render_batch([scene])[0].tobytes()


def test_every_ink_shows_and_the_rest_is_paper():
    assert set(INKS) == set(COLOURS)
    for colour in COLOURS:
        picture = np.asarray(render(Scene((SceneObject("square", colour, (1, 1)),))))
        assert tuple(picture[32, 32]) == INKS[colour]
        assert tuple(picture[0, 0]) == PAPER


@pytest.mark.parametrize("size", [48, 64, 128])
@pytest.mark.parametrize("length", [2, 3, 5])
def test_words_stay_inside_with_letters_apart(size, length):
    for seed in range(30):
        scene = sample_scene(random.Random(seed), "word", word_length=length)
        ink = np.asarray(render(scene, random.Random(seed), size)).min(axis=2) < 250
        assert not ink[[0, -1]].any()
        assert not ink[:, [0, -1]].any()
        columns = ink.any(axis=0)
        letters = int(np.count_nonzero(np.diff(columns.astype(int)) == 1))
        assert letters == length


def test_a_picture_too_small_is_refused():
    with pytest.raises(DataError, match="at least 32"):
        render(Scene(word=Word("KEM", "red")), size=16)


def test_a_picture_takes_a_hundred_calls():
    """Of Python's: tens of thousands are drawn before a training begins."""
    scenes = _word_scenes(100)
    assert calls_of(lambda: render_batch(scenes, range(100))) < 100 * 150


def test_the_recogniser_reads_true_renders():
    rapidocr = pytest.importorskip("rapidocr")
    distance = pytest.importorskip("Levenshtein").distance
    threads = "EngineConfig.onnxruntime.intra_op_num_threads"
    engine = rapidocr.RapidOCR(params={"Global.log_level": "error", threads: 1})
    similarities = []
    scenes = _word_scenes(32)
    for scene, picture in zip(scenes, render_batch(scenes, range(32)), strict=True):
        bgr = np.ascontiguousarray(picture[..., ::-1])
        output = engine(bgr, use_det=False, use_cls=False, use_rec=True)
        read = "".join(output.txts or ()).lower().replace(" ", "")
        target = scene.word.text.lower()
        missed = 0 if target in read else min(distance(target, read), len(target))
        similarities.append(1 - missed / len(target))
    assert np.mean(similarities) >= 0.95
