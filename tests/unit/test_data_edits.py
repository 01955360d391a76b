"""Edits of scenes: instructions that say what changes, and a check that tells well from badly."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from atelier.data.edit_check import EditResult, check_edit
from atelier.data.edits import KINDS, Edit, edit
from atelier.data.render import render
from atelier.data.scenes import (
    GRID,
    VOCABULARY,
    Scene,
    SceneObject,
    prompt_tokens,
    sample_scene,
)
from atelier.errors import DataError

RED, BLUE = SceneObject("circle", "red", (1, 1)), SceneObject("square", "blue", (2, 0))
SCENE = Scene((RED, BLUE))
SCENES = [sample_scene(random.Random(number), "shapes") for number in range(200)]


def edits() -> list[Edit]:
    return [edit(scene, random.Random(number)) for number, scene in enumerate(SCENES)]


def picture(*objects: SceneObject) -> Image.Image:
    return render(Scene(objects), random.Random(0))


def test_every_kind_is_drawn_and_reads_as_the_scene_world_speaks() -> None:
    made = edits()
    assert Counter(one.kind for one in made).keys() == set(KINDS)
    for one in made:
        assert set(prompt_tokens(one.instruction)) <= set(VOCABULARY)
        assert one.source != one.target
        assert one.instruction.split()[0] == ("change" if one.kind == "colour" else one.kind)


def test_the_same_draw_gives_the_same_edit() -> None:
    assert edits() == edits()


def test_a_kind_can_be_asked_for() -> None:
    for kind in KINDS:
        assert edit(SCENE, random.Random(3), kind).kind == kind


def test_the_target_follows_and_preserves_and_the_source_does_not_follow() -> None:
    for number, one in enumerate(edits()):
        done = check_edit(render(one.target, random.Random(number)), one)
        assert (done.following, done.preserving) == (1.0, 1.0), (one, done.facts)
        undone = check_edit(render(one.source, random.Random(number)), one)
        assert undone.following == 0.0, one
        kept = [fact for name, fact in undone.facts.items() if "stays" in name]
        assert all(kept), (one, undone.facts)


def test_an_edit_of_another_kind_is_not_what_was_asked_for() -> None:
    for number, one in enumerate(edits()):
        other = edit(one.source, random.Random(1000 + number))
        same = set(other.target.objects) == set(one.target.objects)  # by two ways of saying it
        if other.kind != one.kind and not same:
            found = check_edit(render(other.target), one)
            assert found.following * found.preserving < 1.0, (one, other)


def test_what_is_kept_gone_and_new() -> None:
    made = edit(SCENE, random.Random(0), "colour")
    assert len(made.kept) == len(made.gone) == len(made.new) == 1
    assert edit(SCENE, random.Random(0), "add").kept == SCENE.objects
    assert edit(SCENE, random.Random(0), "remove").new == ()


def test_a_lost_bystander_and_a_stranger_are_not_preserving() -> None:
    blue = replace(RED, colour="blue")
    made = Edit("colour", "change the red circle to blue", SCENE, Scene((blue, BLUE)))
    assert check_edit(picture(blue), made).preserving == 0.5
    stranger = SceneObject("cross", "green", (0, 2))
    crowded = check_edit(picture(blue, BLUE, stranger), made)
    assert (crowded.following, crowded.preserving) == (1.0, 0.5)
    assert check_edit(picture(blue, replace(BLUE, cell=(2, 1))), made).preserving == 0.0


def test_a_wrong_colour_fails_the_instruction_alone() -> None:
    made = Edit(
        "colour",
        "change the red circle to blue",
        SCENE,
        Scene((replace(RED, colour="blue"), BLUE)),
    )
    found = check_edit(picture(replace(RED, colour="green"), BLUE), made)
    assert (found.following, found.preserving) == (0.0, 1.0)


def test_an_added_thing_may_stand_anywhere_free_but_once() -> None:
    more = replace(RED, cell=(0, 0))
    made = Edit("add", "add a red circle", SCENE, Scene((RED, more, BLUE)))
    elsewhere = replace(RED, cell=(2, 2))
    assert check_edit(picture(RED, elsewhere, BLUE), made).facts["followed"]
    assert check_edit(picture(RED, elsewhere, BLUE), made).preserving == 1.0
    twice = check_edit(picture(RED, more, elsewhere, BLUE), made)
    assert (twice.following, twice.preserving) == (0.0, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("cell", "followed"), [((1, 2), True), ((1, 0), False), ((0, 2), False), ((1, 1), False)]
)
def test_a_thing_moved_to_the_right_stays_in_its_row(cell: tuple[int, int], followed: bool) -> None:
    made = Edit(
        "move",
        "move the red circle to the right",
        SCENE,
        Scene((replace(RED, cell=(1, 2)), BLUE)),
        "right",
    )
    assert check_edit(picture(replace(RED, cell=cell), BLUE), made).facts["followed"] == followed


@pytest.mark.parametrize(("cell", "followed"), [((0, 0), True), ((1, 0), True), ((2, 1), False)])
def test_a_thing_moved_above_another(cell: tuple[int, int], followed: bool) -> None:
    made = Edit(
        "move",
        "move the red circle above the blue square",
        SCENE,
        Scene((replace(RED, cell=(1, 0)), BLUE)),
        "above",
    )
    found = check_edit(picture(replace(RED, cell=cell), BLUE), made)
    assert (found.facts["followed"], found.preserving) == (followed, 1.0)


def test_scribble_is_something_else() -> None:
    made = edit(SCENE, random.Random(0), "remove")
    image = np.asarray(render(made.target)).copy()
    image[2:6, 20:60] = 0
    found = check_edit(image, made)
    assert found.following == 1.0
    assert not found.facts["nothing else"]
    assert found.wrong == ["something else is in the picture"]


def test_what_is_wrong_is_told_in_sentences() -> None:
    facts = {
        "nothing else": True,
        "followed": False,
        "blue square stays at (1, 2)": False,
        "red circle keeps its shape": False,
        "step 2: colour red circle": False,
    }
    assert EditResult(0.0, 0.5, facts).wrong == [
        "the instruction was not followed",
        "blue square did not stay at (1, 2)",
        "red circle lost its shape",
        "step 2 was not taken (colour red circle)",
    ]
    made = edit(SCENE, random.Random(0), "remove")
    assert check_edit(render(made.source), made).wrong == ["the instruction was not followed"]


def test_a_full_grid_takes_nothing_more() -> None:
    cells = [(row, column) for row in range(GRID) for column in range(GRID)]
    nouns = [("circle", "red")] * 4 + [("square", "blue")] * 4 + [("cross", "green")]
    full = Scene(tuple(SceneObject(*noun, cell) for noun, cell in zip(nouns, cells, strict=True)))
    with pytest.raises(DataError, match="'add'"):
        edit(full, random.Random(0), "add")
    with pytest.raises(DataError, match="without a word"):
        edit(sample_scene(random.Random(0), "mixed"), random.Random(0))
