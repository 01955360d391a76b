"""Compound edits of scenes: instructions of eight levels, and a check that counts their steps."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from atelier.config.sections.data import DataConfig
from atelier.config.sections.edit_levels import levels_of
from atelier.data.compound_check import check_compound
from atelier.data.compound_edits import KINDS, CompoundEdit, Step, compound_edit, family, split_of
from atelier.data.compound_words import WORDS, instruction, sequence
from atelier.data.edit_rows import check_row, compound_prompt, edit_of
from atelier.data.edits import SIDES
from atelier.data.ground_truth import ground_truth_image, source_image
from atelier.data.prepare import prepare
from atelier.data.prompts import Prompt, PromptSet, read_prompts
from atelier.data.render import render_objects
from atelier.data.riddles import riddle
from atelier.data.scenes import COLOURS, SHAPES, SceneObject, relation_of
from atelier.data.words import words_of
from atelier.errors import DataError

LEVELS = range(1, 9)
EDITS = [compound_edit(random.Random(f"{level} {n}"), level) for level in LEVELS for n in range(40)]

RED, GREEN = SceneObject("circle", "red", (1, 1)), SceneObject("cross", "green", (0, 0))
BROWN, BLACK = SceneObject("square", "brown", (2, 2)), SceneObject("triangle", "black", (0, 2))
BLUE = SceneObject("square", "blue", (2, 0))  # what becomes of RED
# change the red circle to a blue square and move it below the green cross, remove the brown square
# and add a black triangle
FIVE = CompoundEdit(
    source=(RED, GREEN, BROWN),
    target=(BLUE, GREEN, BLACK),
    steps=(
        Step("colour", "red circle", "blue"),
        Step("remove", "brown square"),
        Step("move", "red circle", "below", "green cross"),
        Step("add", "black triangle"),
        Step("shape", "red circle", "square"),
    ),
)


def picture(*objects: SceneObject) -> Image.Image:
    return render_objects(objects, random.Random(0))


def scores(*objects: SceneObject) -> tuple[float, float]:
    found = check_compound(picture(*objects), FIVE)
    return found.following, found.preserving


def test_one_instruction_names_each_thing_once_and_the_sequence_is_consistent() -> None:
    assert instruction(FIVE) == (
        "change the red circle to a blue square and move it below the green cross, remove the "
        "brown square and add a black triangle"
    )
    assert sequence(FIVE) == [
        "change the red circle to blue",
        "remove the brown square",
        "move the blue circle below the green cross",
        "add a black triangle",
        "change the blue circle to a square",
    ]


def test_every_level_has_every_kind_and_as_many_steps() -> None:
    kinds: dict[int, Counter[str]] = {level: Counter() for level in LEVELS}
    for made in EDITS:
        kinds[made.level].update(step.kind for step in made.steps)
        assert made.level == len(sequence(made))
        assert set(words_of(instruction(made))) <= set(WORDS)
    assert all(found.keys() == set(KINDS) for found in kinds.values())


def carried_out(source: tuple[SceneObject, ...], sentences: list[str]) -> Counter[str]:
    """What the atomic instructions leave of things, read as text, one after the other."""
    nouns = Counter(item.noun for item in source)
    for sentence in sentences:
        verb, *words = sentence.split()
        noun = " ".join(words[1:3])
        assert nouns[noun] == (0 if verb == "add" else 1), (sentence, nouns)
        if verb == "change":
            colour, shape = noun.split()
            value = words[-1]
            nouns[noun] = 0
            nouns[f"{value} {shape}" if value in COLOURS else f"{colour} {value}"] += 1
        elif verb in ("add", "remove"):
            nouns[noun] = int(verb == "add")
    return +nouns


def test_the_sequence_makes_the_target_and_no_step_undoes_another() -> None:
    for made in EDITS:
        end = Counter(item.noun for item in made.target)
        assert carried_out(made.source, sequence(made)) == end
        assert len({item.cell for item in made.target}) == len(made.target)
        assert made.kept
        assert set(made.kept) <= set(made.target)
        for noun in {step.noun for step in made.steps}:
            kinds = [step.kind for step in made.steps if step.noun == noun]
            assert len(kinds) == len(set(kinds))
            assert len(kinds) == 1 or not {"add", "remove"} & set(kinds)
        stays = {item.noun for item in made.kept}
        assert {step.other for step in made.steps if step.other} <= stays


def test_no_two_things_could_have_one_name() -> None:
    for made in EDITS:
        nouns = {item.noun for item in made.source} | {step.noun for step in made.steps}
        names = [name for noun in nouns for name in family(noun, [*made.steps_of(noun).values()])]
        assert len(names) == len(set(names))


def test_the_target_does_everything_and_a_copy_of_the_source_nothing() -> None:
    for number, made in enumerate(EDITS):
        done = check_compound(render_objects(made.target, random.Random(number)), made)
        assert (done.following, done.preserving) == (1.0, 1.0), (made, done.facts)
        undone = check_compound(render_objects(made.source, random.Random(number)), made)
        assert (undone.following, undone.preserving) == (0.0, 1.0), (made, undone.facts)


def test_following_is_the_share_of_steps_whatever_their_order() -> None:
    """Every picture half way, of the steps taken one by one."""
    for made in EDITS:
        target = {item.noun: item for item in made.target}
        things = {item.noun: item for item in made.source}
        order = random.Random(made.level).sample(made.steps, made.level)
        for taken, step in enumerate(order, start=1):
            end = target[end_noun(made, step.noun)] if step.kind != "remove" else None
            if end is None:
                del things[step.noun]
            elif step.kind == "add":
                things[step.noun] = end
            else:
                name = "cell" if step.kind == "move" else step.kind
                things[step.noun] = replace(things[step.noun], **{name: getattr(end, name)})
            found = check_compound(render_objects(tuple(things.values())), made)
            assert found.following == pytest.approx(taken / made.level), (made, found.facts)
            assert found.preserving == 1.0, (made, found.facts)


def end_noun(made: CompoundEdit, noun: str) -> str:
    steps = made.steps_of(noun)
    colour, shape = noun.split()
    return " ".join(
        str(steps[kind].value) if kind in steps else old
        for kind, old in (("colour", colour), ("shape", shape))
    )


def test_a_half_done_edit_and_one_that_breaks_other_things() -> None:
    assert scores(BLUE, GREEN, BLACK) == (1.0, 1.0)
    assert scores(RED, GREEN, BROWN) == (0.0, 1.0)
    half = SceneObject("square", "red", (1, 1))
    assert scores(half, GREEN, BLACK) == (3 / 5, 1.0)  # removed, added, a square
    assert scores(BLUE, BLACK) == (1.0, 1 / 2)  # the bystander is lost
    assert scores(BLUE, replace(GREEN, cell=(0, 1)), BLACK) == (1.0, 1 / 2)  # it moved
    stranger = SceneObject("cross", "purple", (1, 2))
    assert scores(BLUE, GREEN, BLACK, stranger) == (1.0, 1 / 2)
    assert scores(BLUE, GREEN, BLACK, replace(stranger, cell=BROWN.cell)) == (1.0, 1 / 2)
    assert scores(RED, BLUE, GREEN, BLACK) == (2 / 5, 1 / 2)  # it is there twice, so neither is it
    assert scores(BLUE, GREEN, BLACK, replace(BLACK, cell=(1, 2))) == (4 / 5, 1 / 2)
    blank = check_compound(np.full((64, 64, 3), 255, np.uint8), FIVE)
    assert (blank.following, blank.preserving) == (1 / 5, 1 / 2)  # what was to go is gone


def test_what_no_step_names_of_an_altered_thing_is_to_stay() -> None:
    made = CompoundEdit(
        (RED, GREEN),
        (replace(RED, colour="blue"), GREEN),
        (Step("colour", "red circle", "blue"),),
    )
    blue = replace(RED, colour="blue")
    assert check_compound(picture(blue, GREEN), made).preserving == 1.0
    moved = check_compound(picture(replace(blue, cell=(1, 2)), GREEN), made)
    assert (moved.following, moved.preserving) == (1.0, 3 / 4)
    assert not moved.facts["red circle keeps its place"]
    other = check_compound(picture(replace(blue, shape="square"), GREEN), made)
    assert (other.following, other.preserving) == (1.0, 3 / 4)
    assert not other.facts["red circle keeps its shape"]
    wrong = check_compound(picture(replace(RED, colour="purple"), GREEN), made)
    assert (wrong.following, wrong.preserving) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("cell", "taken"), [((1, 0), True), ((2, 0), True), ((2, 1), True), ((0, 1), False)]
)
def test_a_thing_goes_beside_another(cell: tuple[int, int], taken: bool) -> None:
    found = check_compound(picture(replace(BLUE, cell=cell), GREEN, BLACK), FIVE)
    assert found.facts["step 3: move red circle"] == taken


def test_moves_go_where_they_say() -> None:
    for made in EDITS:
        cells = {item.noun: item.cell for item in made.source}
        for step in made.steps:
            if step.kind != "move":
                continue
            (end,) = [one for one in made.target if one.noun == end_noun(made, step.noun)]
            if step.value in SIDES:
                assert end.cell[0] == cells[step.noun][0]
                assert (end.cell[1] - cells[step.noun][1]) * SIDES[step.value] > 0
            else:
                assert relation_of(end.cell, cells[str(step.other)]) == step.value
                assert relation_of(cells[step.noun], cells[str(step.other)]) != step.value


def test_a_row_holds_the_edit_and_its_pictures() -> None:
    for made in EDITS[::7]:
        row = compound_prompt(made)
        assert edit_of(row) == made
        truth, source = ground_truth_image(row), source_image(row)
        assert truth is not None
        assert source is not None
        found = check_row(truth, row)
        assert found is not None
        assert (found.following, found.preserving) == (1.0, 1.0)
        assert check_row(source, row) == check_compound(source, made)
    with pytest.raises(DataError, match="not an edit"):
        edit_of(Prompt(0, 0, "x", {**row.metadata, "steps": [["colour", "a b", "c", "d", "e"]]}))


def tables(folder: Path, **settings: object) -> dict[str, PromptSet]:
    values: dict[str, object] = {
        **{"source": "scenes", "scene_kind": "shapes", "scene_task": "edit"},
        **{"train_prompts": 64, "heldout_prompts": 16, **settings},
    }
    prepare(DataConfig.model_validate(values), folder)
    return {name: read_prompts(folder / f"{name}.parquet") for name in ("train", "heldout")}


def test_tables_have_the_levels_in_turn_and_split_by_what_the_source_holds(tmp_path: Path) -> None:
    made = tables(tmp_path, edit_levels="1-8")
    for name, table in made.items():
        assert [one.metadata["level"] for one in table] == [*LEVELS] * (len(table) // 8)
        for one in table:
            found = edit_of(one)
            if isinstance(found, CompoundEdit):
                assert split_of(found) == name
    single, again = (tables(tmp_path / f"{n}", edit_levels=n) for n in (None, 1))
    assert single["train"].digest == again["train"].digest
    assert {one.metadata["level"] for one in single["train"]} == {1}


@pytest.mark.parametrize("levels", ["1", "2-8"])
def test_riddles_hide_the_names_and_are_checked_as_the_plain_words_are(
    tmp_path: Path, levels: str
) -> None:
    plain = tables(tmp_path / "plain", edit_levels=levels)["train"]
    told = tables(tmp_path / "told", edit_levels=levels, scene_wording="riddle")["train"]
    for one, other in zip(plain, told, strict=True):
        assert other.text == riddle(one.text) != one.text
        assert not {*COLOURS, *SHAPES} & set(words_of(other.text))
        assert edit_of(other) == edit_of(one)
        truth = ground_truth_image(other)
        assert truth is not None
        found = check_row(truth, other)
        assert found is not None
        assert (found.following, found.preserving) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "levels"),
    [("8", (8,)), ("1-8", tuple(LEVELS)), ("5,1, 3", (1, 3, 5)), ("1-3,2", (1, 2, 3))],
)
def test_levels_are_read(text: str, levels: tuple[int, ...]) -> None:
    assert levels_of(text) == levels
    assert DataConfig(edit_levels=text).levels_for("scenes") == levels


@pytest.mark.parametrize("text", ["", "0", "9", "1-9", "8-1", "1;2", "a", "1,,2", True, 1.5])
def test_other_levels_are_refused(text: object) -> None:
    with pytest.raises(ValidationError, match="edit_levels"):
        DataConfig.model_validate({"edit_levels": text})
