"""The gold check of a compound edit: how many of its steps were taken, and is the rest as it was?

Exact rules over the shapes that `gold` finds, no learning. A thing is known by its name, with any
mixture of its old and new properties, since no other thing has such a name; where there is none of
it, by its old place. As Complex-Edit scores an instruction of several steps, following is the mean
over the steps. Source: the Qwen vision GRPO guide.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from atelier.data.compound_edits import ALTERATIONS, CompoundEdit, Step, family
from atelier.data.edit_check import EditResult, Mark, marks_of
from atelier.data.edits import SIDES, Cell
from atelier.data.scenes import SceneObject, relation_of


def check_compound(image: Image.Image | NDArray[np.uint8], made: CompoundEdit) -> EditResult:
    """Check a picture (RGB, or uint8 [H, W, 3], square) against a compound edit of its source.

    `following` is the share of the steps that were taken; `preserving` the share of what holds of
    the rest: that each untouched thing stays, that each altered thing keeps the properties that no
    step names, and that there is nothing else. The facts of steps are numbered from 1.

    Raises:
        DataError: the array is not uint8 [H, W, 3].
    """
    marks = marks_of(image)
    found = {item.noun: _mark_of(item, made, marks) for item in made.source}
    steps = {
        f"step {number}: {step.kind} {step.noun}": _is_taken(step, made, marks, found)
        for number, step in enumerate(made.steps, start=1)
    }
    rest = dict(_rest(made, marks, found))
    return EditResult(
        sum(steps.values()) / len(steps), sum(rest.values()) / len(rest), {**steps, **rest}
    )


def _mark_of(item: SceneObject, made: CompoundEdit, marks: list[Mark]) -> Mark | None:
    """The one mark that is this thing of the source; None where there is none, or several."""
    steps = made.steps_of(item.noun)
    names = family(item.noun, list(steps.values()))
    named = [mark for mark in marks if mark[1] in names]
    if named:
        return named[0] if len(named) == 1 else None
    if "remove" in steps:  # what stands in its place is something else
        return None
    there = [mark for mark in marks if mark[0] == item.cell]
    return there[0] if len(there) == 1 and there[0][1] not in _names(made) else None


def _names(made: CompoundEdit) -> set[str]:
    """What anything of the source, or added, is or could be called half way."""
    nouns = {item.noun for item in made.source} | {step.noun for step in made.steps}
    return {name for noun in nouns for name in family(noun, list(made.steps_of(noun).values()))}


def _is_taken(
    step: Step, made: CompoundEdit, marks: list[Mark], found: dict[str, Mark | None]
) -> bool:
    named = [mark for mark in marks if mark[1] == step.noun]
    if step.kind == "remove":
        return not named
    if step.kind == "add":
        return len(named) == 1 and _is_alone(named[0], marks)
    mark = found[step.noun]
    if mark is None:
        return False
    if step.kind == "move":
        return _is_there(mark[0], step, made)
    return step.value in mark[1].split()


def _is_alone(mark: Mark, marks: list[Mark]) -> bool:
    return sum(one[0] == mark[0] for one in marks) == 1


def _is_there(cell: Cell, step: Step, made: CompoundEdit) -> bool:
    """Whether a moved thing's new cell is where its step wants it."""
    cells = {item.noun: item.cell for item in made.source}
    old = cells[step.noun]
    if step.value in SIDES:
        return cell[0] == old[0] and (cell[1] - old[1]) * SIDES[step.value] > 0
    assert step.other is not None
    return relation_of(cell, cells[step.other]) == step.value


def _rest(
    made: CompoundEdit, marks: list[Mark], found: dict[str, Mark | None]
) -> Iterator[tuple[str, bool]]:
    """Name and truth of all that no step asks to change."""
    for item in made.kept:
        mark = found[item.noun]
        stays = mark == (item.cell, item.noun) and _is_alone((item.cell, item.noun), marks)
        yield f"{item.noun} stays at {item.cell}", stays
    for item in made.source:
        steps = made.steps_of(item.noun)
        if steps and steps.keys() <= ALTERATIONS:
            yield from _unnamed_properties(item, steps.keys(), found[item.noun])
    yield "nothing else", not _strangers(made, marks, found)


def _unnamed_properties(
    item: SceneObject, kinds: Iterable[str], mark: Mark | None
) -> Iterator[tuple[str, bool]]:
    """What of an altered thing is to stay: of its colour, its shape and its place."""
    if "colour" not in kinds:
        yield f"{item.noun} keeps its colour", mark is not None and item.colour in mark[1].split()
    if "shape" not in kinds:
        yield f"{item.noun} keeps its shape", mark is not None and item.shape in mark[1].split()
    if "move" not in kinds:
        yield f"{item.noun} keeps its place", mark is not None and mark[0] == item.cell


def _strangers(made: CompoundEdit, marks: list[Mark], found: dict[str, Mark | None]) -> list[Mark]:
    """Marks that are no thing of the source, and nothing that was to be added."""
    left = Counter(marks) - Counter(mark for mark in found.values() if mark is not None)
    for step in made.steps:
        own = next((mark for mark in left if mark[1] == step.noun and step.kind == "add"), None)
        if own is not None:
            left -= Counter([own])
    return list(left.elements())
