"""Compound edits of a picture of shapes: one instruction that asks for several atomic edits.

Levels are those of Complex-Edit: an instruction of level k is worth k steps, one after the other.
No step undoes another: a thing changes its colour, its shape and its place once at most, what is
taken away or added is not touched otherwise, and one thing at least stays as it is. The names that
a thing has or could have half way are no other thing's. Source: the Qwen vision GRPO guide.
"""

import random
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, get_args

from atelier.data.edits import CELLS, SIDES, STEPS, Cell
from atelier.data.scenes import (
    COLOURS,
    GRID,
    SHAPES,
    SceneObject,
    Split,
    relation_of,
    split_of_things,
)

Kind = Literal["colour", "shape", "move", "remove", "add"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ALTERATIONS = frozenset({"colour", "shape", "move"})  # of a thing that stays


@dataclass(frozen=True)
class Step:
    """An atomic edit of the thing that the source calls `noun`; of one added, its noun.

    Attributes:
        value: the new colour or shape; of a move "left" or "right" of its own old place, or a
            relation of `STEPS` to `other`, a thing that stays as it is. None of the others.
    """

    kind: Kind
    noun: str
    value: str | None = None
    other: str | None = None


@dataclass(frozen=True)
class CompoundEdit:
    """`steps` make `target` of `source`: different things, each in a cell of its own.

    Where steps leave a place open ("add a red circle"), `target` has one of those that would do.
    """

    source: tuple[SceneObject, ...]
    target: tuple[SceneObject, ...]
    steps: tuple[Step, ...]

    @property
    def level(self) -> int:
        return len(self.steps)

    @property
    def kept(self) -> tuple[SceneObject, ...]:
        """What no step touches."""
        touched = {step.noun for step in self.steps}
        return tuple(item for item in self.source if item.noun not in touched)

    def steps_of(self, noun: str) -> dict[Kind, Step]:
        """The steps that touch the thing that the source calls so, by kind."""
        return {step.kind: step for step in self.steps if step.noun == noun}


def compound_edit(rng: random.Random, level: int, split: Split | None = None) -> CompoundEdit:
    """Draw an edit of `level` steps, 1 to 8, its source from one split or (None) from both; a pure
    function of `rng`. Few things have many steps, and many things few."""
    while True:
        made = _drawn(rng, level)
        if made is not None and split in (None, split_of(made)):
            return made


def split_of(made: CompoundEdit) -> Split:
    """The split of what the source holds, the same as of a scene that holds it."""
    return split_of_things({item.noun: 1 for item in made.source})


def after(thing: SceneObject, step: Step) -> SceneObject:
    """The thing with its new colour or shape; for a move as it was, since cells are drawn."""
    if step.kind == "colour":
        return replace(thing, colour=str(step.value))
    return replace(thing, shape=str(step.value)) if step.kind == "shape" else thing


@dataclass
class _Draft:
    """What was drawn so far."""

    things: dict[str, SceneObject | None]  # by the noun of the source; None: taken away
    cells: dict[str, Cell]  # where the things of the source stand
    steps: list[Step] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # that a thing has or could have
    anchors: set[str] = field(default_factory=set)  # things that others are moved beside
    taken: set[Cell] = field(default_factory=set)

    def kinds_of(self, noun: str) -> set[Kind]:
        return {step.kind for step in self.steps if step.noun == noun}

    def touchable(self, kind: Kind) -> list[str]:
        """Things of the source that such a step may touch."""
        untouched = [noun for noun in self.cells if not self.kinds_of(noun)]
        touched = {
            noun
            for noun in self.cells
            if (kinds := self.kinds_of(noun)) and kinds <= ALTERATIONS and kind not in kinds
        }
        fresh = [one for one in untouched if one not in self.anchors]
        found = set(fresh) if len(untouched) > 1 else set()
        if kind in ALTERATIONS:
            found |= touched
        return [noun for noun in self.cells if noun in found]

    def free(self) -> list[Cell]:
        """Cells that nothing stands in, stood in or comes to."""
        return [cell for cell in CELLS if cell not in self.taken]


def _drawn(rng: random.Random, level: int) -> CompoundEdit | None:
    """An edit of some things; None where they run out before the steps do."""
    count = rng.randint(2 + level // 4, 4 + level // 4)
    nouns = rng.sample([(shape, colour) for shape in SHAPES for colour in COLOURS], count)
    cells = rng.sample(CELLS, count)
    source = tuple(SceneObject(*noun, cell=cell) for noun, cell in zip(nouns, cells, strict=True))
    draft = _Draft(
        things={item.noun: item for item in source},
        cells={item.noun: item.cell for item in source},
        names={item.noun for item in source},
        taken=set(cells),
    )
    for _ in range(level):
        if not any(_MAKERS[kind](draft, rng) for kind in rng.sample(KINDS, len(KINDS))):
            return None
    target = tuple(item for item in draft.things.values() if item is not None)
    return CompoundEdit(source, target, tuple(draft.steps))


def _colour(draft: _Draft, rng: random.Random) -> bool:
    return _alter(draft, rng, "colour", COLOURS)


def _shape(draft: _Draft, rng: random.Random) -> bool:
    return _alter(draft, rng, "shape", SHAPES)


def _alter(
    draft: _Draft, rng: random.Random, kind: Literal["colour", "shape"], values: tuple[str, ...]
) -> bool:
    """Give a thing another colour or shape, if with every mixture of old and new it stays the only
    one of its name."""
    choices: list[tuple[Step, set[str]]] = []
    for noun in draft.touchable(kind):
        thing = draft.things[noun]
        assert thing is not None, f"{noun} was taken away, so it is not touched again"
        for value in values:
            step = Step(kind, noun, value)
            own = family(noun, [*_alterations(draft, noun), step])
            new = own - family(noun, _alterations(draft, noun))
            if new and not new & draft.names:
                choices.append((step, new))
    if not choices:
        return False
    step, new = rng.choice(choices)
    thing = draft.things[step.noun]
    assert thing is not None
    draft.things[step.noun] = after(thing, step)
    draft.names |= new
    draft.steps.append(step)
    return True


def family(noun: str, steps: list[Step]) -> set[str]:
    """The names of a thing with any of its new properties: "red circle", "blue circle", "red
    square", "blue square"."""
    colour, shape = noun.split()
    values = {step.kind: step.value for step in steps}
    colours = {colour, values.get("colour") or colour}
    shapes = {shape, values.get("shape") or shape}
    return {f"{one} {other}" for one, other in product(colours, shapes)}


def _alterations(draft: _Draft, noun: str) -> list[Step]:
    return [step for step in draft.steps if step.noun == noun]


def _move(draft: _Draft, rng: random.Random) -> bool:
    free = set(draft.free())
    choices = [
        (step, cells)
        for noun in draft.touchable("move")
        for step, cells in _places(draft, noun, free)
        if cells
    ]
    if not choices:
        return False
    step, cells = rng.choice(choices)
    _put(draft, step, rng.choice(cells))
    if step.other is not None:
        draft.anchors.add(step.other)
    return True


def _places(draft: _Draft, noun: str, free: set[Cell]) -> list[tuple[Step, list[Cell]]]:
    """Where a thing could go: the step, and the free cells that would do."""
    row, column = old = draft.cells[noun]
    found = []
    for side, sign in SIDES.items():
        cells = [(row, other) for other in range(GRID) if (other - column) * sign > 0]
        found.append((Step("move", noun, side), [cell for cell in cells if cell in free]))
    for other, place in draft.cells.items():
        if other == noun or draft.kinds_of(other):
            continue
        for relation in STEPS:
            if relation_of(old, place) != relation:
                # In one line with it: "above" is not said of what stands far aside as well.
                cells = [cell for cell in free if _in_line(cell, place, relation)]
                found.append((Step("move", noun, relation, other), sorted(cells)))
    return found


def _in_line(cell: Cell, place: Cell, relation: str) -> bool:
    return relation_of(cell, place) == relation and 0 in (cell[0] - place[0], cell[1] - place[1])


def _remove(draft: _Draft, rng: random.Random) -> bool:
    nouns = draft.touchable("remove")
    if not nouns:
        return False
    noun = rng.choice(nouns)
    draft.things[noun] = None
    draft.steps.append(Step("remove", noun))
    return True


def _add(draft: _Draft, rng: random.Random) -> bool:
    free = draft.free()
    nouns = [f"{colour} {shape}" for colour, shape in product(COLOURS, SHAPES)]
    unseen = [noun for noun in nouns if noun not in draft.names]
    if not free or not unseen:
        return False
    noun = rng.choice(unseen)
    colour, shape = noun.split()
    draft.things[noun] = SceneObject(shape, colour, (0, 0))
    draft.names.add(noun)
    _put(draft, Step("add", noun), rng.choice(free))
    return True


def _put(draft: _Draft, step: Step, cell: Cell) -> None:
    thing = draft.things[step.noun]
    assert thing is not None
    draft.things[step.noun] = replace(thing, cell=cell)
    draft.taken.add(cell)
    draft.steps.append(step)


_MAKERS = {"colour": _colour, "shape": _shape, "move": _move, "remove": _remove, "add": _add}
