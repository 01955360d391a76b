"""Prompts that name colours and shapes by what they are known for."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from atelier.config.sections.data import DataConfig
from atelier.data.prepare import prepare
from atelier.data.prompts import read_prompts
from atelier.data.riddles import COLOUR_CLUES, SHAPE_CLUES, riddle
from atelier.data.scenes import COLOURS, SHAPES, prompt, sample_scene
from atelier.data.words import words_of

NAMES = (*COLOURS, *SHAPES, *(f"{one}es" if one == "cross" else f"{one}s" for one in SHAPES))


def solved(text: str) -> str:
    """The plain words again, by the tables of clues."""
    for colour, clues in COLOUR_CLUES.items():
        for clue in clues:
            text = text.replace(f"the colour of {clue}", f"<{colour}>")
    for shape, clues in SHAPE_CLUES.items():
        for clue in clues:
            plural = f"{shape}es" if shape.endswith("s") else f"{shape}s"
            text = re.sub(rf"shapes {clue} (<\w+>)", rf"\1 {plural}", text)
            text = re.sub(rf"shape {clue} (<\w+>)", rf"\1 {shape}", text)
    return text.replace("<", "").replace(">", "")


def test_there_is_a_clue_for_everything_and_no_clue_for_two_things() -> None:
    assert set(COLOUR_CLUES) == set(COLOURS)
    assert set(SHAPE_CLUES) == set(SHAPES)
    clues = [
        clue for table in (COLOUR_CLUES, SHAPE_CLUES) for own in table.values() for clue in own
    ]
    assert len(set(clues)) == len(clues)
    assert not set(NAMES) & set(words_of(*clues))


@pytest.mark.parametrize("kind", ["shapes", "mixed", "word"])
def test_a_riddle_tells_no_name_and_has_one_solution(kind) -> None:
    rng = random.Random(1)
    for _ in range(200):
        plain = prompt(sample_scene(rng, kind))
        text = riddle(plain)
        assert not set(NAMES) & set(words_of(text))
        assert solved(text) == plain
        assert riddle(plain) == text


def test_letters_of_a_word_are_no_names() -> None:
    assert riddle('the word "red" in red').startswith('the word "red" in the colour of ')


def test_things_differ_in_their_clues() -> None:
    rng = random.Random(2)
    texts = " ".join(riddle(prompt(sample_scene(rng, "shapes"))) for _ in range(300))
    for table in (COLOUR_CLUES, SHAPE_CLUES):
        assert all(clue in texts for clues in table.values() for clue in clues)


@pytest.mark.parametrize("task", ["draw", "edit", "graph"])
def test_a_table_of_riddles_keeps_what_they_ask_for(task, tmp_path: Path) -> None:
    def table(name: str, **wording):
        sizes = {"train_prompts": 24, "heldout_prompts": 8}
        config = DataConfig(
            source="scenes", scene_kind="shapes", scene_task=task, **sizes, **wording
        )
        prepare(config, tmp_path / name)
        return read_prompts(tmp_path / name / "train.parquet")

    plain, told = table("plain"), table("riddle", scene_wording="riddle")
    assert [one.metadata["plain"] for one in told] == [one.text for one in plain]
    assert [one.text for one in told] == [riddle(one.text) for one in plain]
    for one, other in zip(plain, told, strict=True):
        assert {**one.metadata, "plain": one.text} == dict(other.metadata)


def test_partners_are_riddles_too(tmp_path: Path) -> None:
    config = DataConfig(
        source="scenes",
        scene_kind="shapes",
        scene_pairs=1.0,
        train_prompts=16,
        heldout_prompts=8,
        scene_wording="riddle",
    )
    prepare(config, tmp_path)
    prompts = read_prompts(tmp_path / "train.parquet")
    for one, other in zip(prompts[::2], prompts[1::2], strict=True):
        assert (one.metadata["partner"], other.metadata["partner"]) == (other.text, one.text)
