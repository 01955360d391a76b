"""Edits of a scene: an instruction, the scene it makes, and what must stay as it was.

They are the data of image editing; `edit_check` judges a picture by them. Source: FocusDiff and
Janus-Pro-R1.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from atelier.data.scenes import (
    COLOURS,
    GRID,
    MAX_COUNT,
    MAX_GROUPS,
    SHAPES,
    Scene,
    SceneObject,
    plural,
    relation_of,
)
from atelier.errors import DataError

Kind = Literal["colour", "replace", "remove", "add", "move"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Cell = tuple[int, int]
CELLS: tuple[Cell, ...] = tuple((row, column) for row in range(GRID) for column in range(GRID))
SIDES = {"left": -1, "right": 1}
STEPS = {"above": (-1, 0), "below": (1, 0), "left of": (0, -1), "right of": (0, 1)}


@dataclass(frozen=True)
class Edit:
    """`instruction` makes `target` of `source`; both hold shapes alone.

    Where an instruction leaves a place open ("add a red circle"), `target` has one of those that
    would do.

    Attributes:
        place: for a move, where the moved object goes: "left" or "right" of its own old place, or
            a relation of `STEPS` to the other object.
    """

    kind: Kind
    instruction: str
    source: Scene
    target: Scene
    place: str | None = None

    @property
    def kept(self) -> tuple[SceneObject, ...]:
        """What must stay: the same thing in the same cell."""
        return tuple(item for item in self.source.objects if item in self.target.objects)

    @property
    def gone(self) -> tuple[SceneObject, ...]:
        return tuple(item for item in self.source.objects if item not in self.target.objects)

    @property
    def new(self) -> tuple[SceneObject, ...]:
        return tuple(item for item in self.target.objects if item not in self.source.objects)


def edit(scene: Scene, rng: random.Random, kind: Kind | None = None) -> Edit:
    """An edit of a scene of shapes; a pure function of `rng`.

    Args:
        kind: None draws one of those that the scene allows.

    Raises:
        DataError: the scene has a word, or does not allow the kind.
    """
    if scene.word is not None or not scene.objects:
        raise DataError(f"{scene}: only scenes of shapes, without a word, can be edited")
    for one in rng.sample(KINDS, len(KINDS)) if kind is None else [kind]:
        made = _MAKERS[one](scene, rng)
        if made is not None:
            return made
    raise DataError(f"{scene}: no edit of kind {kind!r} is possible")


def _colour(scene: Scene, rng: random.Random) -> Edit | None:
    noun, count = rng.choice(list(scene.groups.items()))
    colour, shape = noun.split()
    choices = [one for one in COLOURS if one != colour and f"{one} {shape}" not in scene.groups]
    other = rng.choice(choices)
    text = f"change the {plural(noun, count)} to {other}"
    return Edit("colour", text, scene, _renamed(scene, noun, f"{other} {shape}"))


def _replace(scene: Scene, rng: random.Random) -> Edit | None:
    noun, count = rng.choice(list(scene.groups.items()))
    other = _unseen_noun(scene, rng)
    with_what = f"a {other}" if count == 1 else plural(other, count)
    text = f"replace the {plural(noun, count)} with {with_what}"
    return Edit("replace", text, scene, _renamed(scene, noun, other))


def _remove(scene: Scene, rng: random.Random) -> Edit | None:
    if len(scene.groups) < 2:
        return None
    noun, count = rng.choice(list(scene.groups.items()))
    rest = tuple(item for item in scene.objects if item.noun != noun)
    return Edit("remove", f"remove the {plural(noun, count)}", scene, Scene(rest))


def _add(scene: Scene, rng: random.Random) -> Edit | None:
    more = [noun for noun, count in scene.groups.items() if count < MAX_COUNT]
    if len(scene.groups) < MAX_GROUPS and (not more or rng.random() < 0.5):
        more = [_unseen_noun(scene, rng)]
    free = _free_cells(scene)
    if not more or not free:
        return None
    noun = rng.choice(more)
    colour, shape = noun.split()
    item = SceneObject(shape, colour, rng.choice(free))
    own = [index for index, one in enumerate(scene.objects) if one.noun == noun]
    end = own[-1] + 1 if own else len(scene.objects)
    objects = (*scene.objects[:end], item, *scene.objects[end:])
    return Edit("add", f"add a {noun}", scene, Scene(objects))


def _move(scene: Scene, rng: random.Random) -> Edit | None:
    single = [item for item in scene.objects if scene.groups[item.noun] == 1]
    choices = [
        (item, place, text, cells)
        for item in single
        for place, text, cells in _places(item, single, set(_free_cells(scene)))
        if cells
    ]
    if not choices:
        return None
    item, place, text, cells = rng.choice(choices)
    moved = replace(item, cell=rng.choice(cells))
    objects = tuple(moved if one == item else one for one in scene.objects)
    return Edit("move", f"move the {item.noun} {text}", scene, Scene(objects), place)


def _places(
    item: SceneObject, single: list[SceneObject], free: set[Cell]
) -> list[tuple[str, str, list[Cell]]]:
    """Where an object could go: the place, its words, and the free cells that would do."""
    row, column = item.cell
    found = []
    for side, step in SIDES.items():
        cells = [(row, other) for other in range(GRID) if (other - column) * step > 0]
        found.append((side, f"to the {side}", [cell for cell in cells if cell in free]))
    for other in single:
        for relation, (down, across) in STEPS.items():
            if other == item or relation_of(item.cell, other.cell) == relation:
                continue
            ray = [
                (other.cell[0] + down * far, other.cell[1] + across * far) for far in range(1, GRID)
            ]
            cells = [cell for cell in ray if cell in free]
            found.append((relation, f"{relation} the {other.noun}", cells))
    return found


_MAKERS: dict[Kind, Callable[[Scene, random.Random], Edit | None]] = {
    "colour": _colour,
    "replace": _replace,
    "remove": _remove,
    "add": _add,
    "move": _move,
}


def _renamed(scene: Scene, noun: str, other: str) -> Scene:
    colour, shape = other.split()
    return Scene(
        tuple(
            SceneObject(shape, colour, item.cell) if item.noun == noun else item
            for item in scene.objects
        )
    )


def _unseen_noun(scene: Scene, rng: random.Random) -> str:
    nouns = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
    return rng.choice([noun for noun in nouns if noun not in scene.groups])


def _free_cells(scene: Scene) -> list[Cell]:
    taken = {item.cell for item in scene.objects}
    return [cell for cell in CELLS if cell not in taken]
