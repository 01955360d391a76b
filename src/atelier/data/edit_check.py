"""The gold check of an edited picture: was the instruction followed, was all else preserved?

Exact rules over the shapes that `gold` finds, no learning. Source: FocusDiff and Janus-Pro-R1
(rewards F and P).
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from atelier.data.edits import SIDES, Cell, Edit
from atelier.data.gold import FoundShape, find_shapes
from atelier.data.scenes import GRID, relation_of

_DENIALS = {
    "nothing else": "something else is in the picture",
    "followed": "the instruction was not followed",
}

Mark = tuple[Cell, str]  # the cell that a thing's centre is in, and its noun


@dataclass(frozen=True)
class EditResult:
    """`following`: the share of the instruction that was carried out, of a single edit 1 or 0;
    `preserving`: the share of what had to stay that did; both in [0, 1]. `facts`: what was looked
    at, by name."""

    following: float
    preserving: float
    facts: dict[str, bool]

    @property
    def wrong(self) -> list[str]:
        """What does not hold, a sentence each."""
        return [_denied(name) for name, is_right in self.facts.items() if not is_right]


def check_edit(image: Image.Image | NDArray[np.uint8], made: Edit) -> EditResult:
    """Check a picture (RGB, or uint8 [H, W, 3], square) against an edit of its source.

    Shapes belong to the cell that their centre is in.

    Raises:
        DataError: the array is not uint8 [H, W, 3].
    """
    marks = marks_of(image)
    held = Counter(marks)
    crowd = Counter(cell for cell, _ in marks)
    facts = {
        f"{item.noun} stays at {item.cell}": crowd[item.cell] == held[item.cell, item.noun] == 1
        for item in made.kept
    }
    facts["nothing else"] = not _strangers(marks, made)
    preserving = sum(facts.values()) / len(facts)
    facts["followed"] = _followed(marks, made)
    return EditResult(float(facts["followed"]), preserving, facts)


def _denied(fact: str) -> str:
    if fact in _DENIALS:
        return _DENIALS[fact]
    number, is_step, asked = fact.partition(": ")
    if is_step:
        return f"{number} was not taken ({asked})"
    return fact.replace(" stays at ", " did not stay at ").replace(" keeps its ", " lost its ")


def marks_of(image: Image.Image | NDArray[np.uint8]) -> list[Mark]:
    """All that a picture holds, also what is no shape: "red "."""
    return [(_cell(one), f"{one.colour} {one.shape}") for one in find_shapes(image, unnamed=True)]


def _cell(shape: FoundShape) -> Cell:
    left, top, right, bottom = shape.box
    row, column = int((top + bottom) / 2 * GRID), int((left + right) / 2 * GRID)
    return min(row, GRID - 1), min(column, GRID - 1)


def _followed(marks: list[Mark], made: Edit) -> bool:
    gone, nouns = {item.noun for item in made.gone}, Counter(noun for _, noun in marks)
    if made.kind == "remove":
        return not any(nouns[noun] for noun in gone)
    if made.kind == "add":
        (new,) = made.new
        taken = {item.cell for item in made.source.objects}
        places = [cell for cell, noun in marks if noun == new.noun and cell not in taken]
        return len(places) == 1 and nouns[new.noun] == made.target.groups[new.noun]
    if made.kind == "move":
        (new,) = made.new
        places = [cell for cell, noun in marks if noun == new.noun]
        return len(places) == 1 and _is_there(places[0], made)
    there = {(item.cell, item.noun) for item in made.new} <= set(marks)
    return there and not any(nouns[noun] for noun in gone)


def _is_there(cell: Cell, made: Edit) -> bool:
    """Whether a moved object's new cell is where the instruction wants it."""
    (old,) = made.gone
    if made.place in SIDES:
        return cell[0] == old.cell[0] and (cell[1] - old.cell[1]) * SIDES[made.place] > 0
    (other,) = [item for item in made.kept if made.instruction.endswith(f" the {item.noun}")]
    return relation_of(cell, other.cell) == made.place


def _strangers(marks: list[Mark], made: Edit) -> list[Mark]:
    """Marks that neither stay nor come of the instruction, well or badly followed."""
    left = Counter(marks) - Counter((item.cell, item.noun) for item in made.kept)
    if made.kind in ("colour", "replace"):
        changed = {item.cell for item in made.gone}
        return [mark for mark in left.elements() if mark[0] not in changed]
    left -= Counter((item.cell, item.noun) for item in made.gone)
    for item in made.new:  # wherever it stands: its place is not for this fact to judge
        own = next((mark for mark in left if mark[1] == item.noun), None)
        if own is not None:
            left -= Counter([own])
    return list(left.elements())
