"""The scene world: prompts within the token budget, splits without leakage, facts, round trips."""

import random

import pytest

from atelier.data.scenes import (
    MAX_PROMPT_TOKENS,
    VOCABULARY,
    Scene,
    SceneObject,
    Word,
    content_key,
    facts,
    from_dict,
    prompt,
    prompt_tokens,
    sample_scene,
    split_of,
    to_dict,
)
from atelier.errors import DataError

KINDS = ("word", "shapes", "mixed")


def _scenes(kind, count=400, **options):
    return [sample_scene(random.Random(seed), kind, **options) for seed in range(count)]


def _objects(*items):
    return tuple(SceneObject(shape, colour, cell) for shape, colour, cell in items)


@pytest.mark.parametrize(
    ("scene", "text"),
    [
        (Scene(word=Word("KEM", "red")), 'the word "KEM" in red'),
        (
            Scene(
                _objects(
                    ("circle", "red", (0, 0)), ("square", "blue", (1, 1)), ("circle", "red", (2, 0))
                )
            ),
            "two red circles and one blue square",
        ),
        (
            Scene(_objects(("circle", "red", (0, 1)), ("square", "blue", (2, 1)))),
            "a red circle above a blue square",
        ),
        (
            Scene(_objects(("circle", "red", (1, 2)), ("cross", "blue", (1, 0)))),
            "a red circle right of a blue cross",
        ),
        (
            Scene(
                _objects(("cross", "blue", (2, 0)), ("cross", "blue", (2, 2))), Word("KEM", "red")
            ),
            'the word "KEM" in red above two blue crosses',
        ),
    ],
)
def test_prompt_names_what_the_scene_holds(scene, text):
    assert prompt(scene) == text


@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_fits_the_token_budget_and_round_trips(kind):
    for scene in _scenes(kind):
        assert scene.kind == kind
        assert len(prompt_tokens(prompt(scene))) <= MAX_PROMPT_TOKENS
        assert from_dict(to_dict(scene)) == scene


@pytest.mark.parametrize(("kind", "length"), [("word", 2), ("word", 5), ("mixed", 4)])
def test_the_longest_words_fit_the_token_budget(kind, length):
    for scene in _scenes(kind, word_length=length):
        assert len(scene.word.text) == length
        assert len(prompt_tokens(prompt(scene))) <= MAX_PROMPT_TOKENS


def test_three_kinds_of_four_objects_fit_the_token_budget():
    cells = iter([(row, column) for row in range(3) for column in range(3)])
    groups = [("circle", "red", 3), ("square", "blue", 3), ("cross", "green", 3)]
    scene = Scene(
        tuple(SceneObject(s, c, next(cells)) for s, c, count in groups for _ in range(count))
    )
    assert len(prompt_tokens(prompt(scene))) <= MAX_PROMPT_TOKENS


def test_tokens_are_words_letters_and_quotes():
    assert prompt_tokens('the word "KEM" in red') == [
        *("the", "word", '"', "K", "E", "M", '"', "in", "red")
    ]
    with pytest.raises(DataError, match="'zebra' is not in the scene vocabulary"):
        prompt_tokens("a red zebra")


def test_no_word_is_a_vocabulary_word():
    assert len(set(VOCABULARY)) == len(VOCABULARY)
    with pytest.raises(DataError, match="vocabulary"):
        Word("RED", "red")


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_is_a_pure_function_of_the_generator(kind):
    assert _scenes(kind, 20) == _scenes(kind, 20)
    assert len(set(_scenes(kind, 200))) > 150


@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_no_content(kind):
    train = {content_key(scene) for scene in _scenes(kind, split="train")}
    heldout = {content_key(scene) for scene in _scenes(kind, split="heldout")}
    assert train
    assert heldout
    assert not train & heldout


def test_a_word_is_in_one_split_whatever_stands_beside_it():
    for scene in _scenes("mixed", 50):
        assert split_of(scene) == split_of(Scene(word=Word(scene.word.text, "black")))


@pytest.mark.parametrize("kind", KINDS)
def test_about_fifteen_percent_are_held_out(kind):
    splits = [split_of(scene) for scene in _scenes(kind, 2000)]
    assert 0.09 < splits.count("heldout") / len(splits) < 0.21


def test_facts_are_what_the_prompt_says():
    scene = Scene(_objects(("circle", "red", (0, 1)), ("square", "blue", (2, 1))))
    assert facts(scene) == {
        **{"red circle": 1, "blue square": 1, "objects": 2},
        "relation": "above",
    }
    mixed = Scene(_objects(("cross", "blue", (0, 0))), Word("KE", "red"))
    assert facts(mixed) == {
        **{"letter 1": "K", "letter 2": "E", "letters": 2, "word colour": "red"},
        **{"blue cross": 1, "objects": 1, "word relation": "below"},
    }


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Scene(), "neither an object nor a word"),
        (lambda: Word("kem", "red"), "2 to 5 letters"),
        (lambda: Word("ABCDEF", "red"), "2 to 5 letters"),
        (lambda: Word("KEM", "pink"), "colour 'pink'"),
        (lambda: SceneObject("blob", "red", (0, 0)), "shape 'blob'"),
        (lambda: SceneObject("cross", "red", (0, 3)), "cell"),
        (lambda: Scene(_objects(*[("cross", "red", (0, 0))] * 2)), "share a cell"),
        (
            lambda: Scene(_objects(*[("cross", "red", (i // 3, i % 3)) for i in range(5)])),
            "4 of a kind",
        ),
        (lambda: Scene(_objects(("cross", "red", (1, 0))), Word("KEM", "red")), "bottom row"),
        (lambda: Scene(_objects(("cross", "red", (0, 0))), Word("KEMPA", "red")), "at most 4"),
        (lambda: from_dict({"objects": []}), "not a scene"),
        (lambda: from_dict({"objects": [{"shape": "cross"}], "word": None}), "not a scene"),
        (lambda: sample_scene(random.Random(0), "picture"), "scene kind 'picture'"),
        (lambda: sample_scene(random.Random(0), "word", "test"), "split 'test'"),
    ],
)
def test_impossible_scenes_are_refused(build, message):
    with pytest.raises(DataError, match=message):
        build()
