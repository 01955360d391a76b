"""Questions about edits: what a right edit answers, and a wrong one does not."""

from __future__ import annotations

import random
import re

from atelier.data.edit_questions import following_questions, preserving_questions
from atelier.data.edits import KINDS, edit
from atelier.data.scenes import NUMBERS, Scene, sample_scene
from atelier.errors import DataError


def holds(scene: Scene, text: str) -> bool:
    """Whether a question about a scene is to be answered yes."""
    if match := re.match(r"(?:Is|Are) there (\w+) (\w+ \w+)\?", text):
        number, noun = match.groups()
        singular = re.sub(r"(?:es|s)$", "", noun) if number not in ("a", "one") else noun
        count = scene.groups.get(noun, 0) or scene.groups.get(singular, 0)
        count = count or scene.groups.get(re.sub(r"s$", "", noun), 0)
        return count > 0 if number == "a" else count == NUMBERS.index(number) + 1
    match = re.match(r"Is the (\w+ \w+) (above|below|left of|right of) the (\w+ \w+)\?", text)
    assert match, text
    first, relation, second = match.groups()
    cells = {item.noun: item.cell for item in scene.objects}
    (row, column), (other_row, other_column) = cells[first], cells[second]
    return {
        "above": row < other_row,
        "below": row > other_row,
        "left of": column < other_column,
        "right of": column > other_column,
    }[relation]


def edits():
    for seed in range(400):
        rng = random.Random(seed)
        scene = sample_scene(rng, "shapes")
        for kind in KINDS:
            try:
                yield edit(scene, rng, kind)
            except DataError:
                continue


def test_a_right_edit_answers_every_question():
    asked = 0
    for one in edits():
        for text, right in (*following_questions(one), *preserving_questions(one)):
            assert holds(one.target, text) == (right == "yes"), (one, text)
            asked += 1
    assert asked > 2000


def test_a_copy_of_the_source_keeps_all_and_does_not_follow():
    for one in edits():
        assert all(holds(one.source, t) == (r == "yes") for t, r in preserving_questions(one))
        if one.kind != "move":
            following = following_questions(one)
            assert following
            assert not all(holds(one.source, t) == (r == "yes") for t, r in following), one
