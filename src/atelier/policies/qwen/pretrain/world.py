"""The world: what is asked for, and the pictures it is about. Made in many processes, the same for
any number of them; nothing here knows of torch.

Text to image paints things in one of a few orders, so that a few steps of denoising suffice to
place them; edits leave the places to their source.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from atelier.data.compound_check import check_compound
from atelier.data.compound_edits import CompoundEdit, compound_edit
from atelier.data.compound_words import instruction
from atelier.data.edit_check import check_edit
from atelier.data.edits import Cell, Edit, edit
from atelier.data.gold import check
from atelier.data.keys import key
from atelier.data.render import render_batch, render_objects
from atelier.data.scenes import GRID, Scene, SceneObject, Split, counted, prompt, sample_scene

if TYPE_CHECKING:
    from atelier.policies.qwen.tiny.parts import Kind  # that module imports torch

Truth = Scene | Edit | CompoundEdit  # what a picture is checked on

CHUNK, LOOKED = 500, 20  # pictures that a process makes, or looks at, at once
# Steps that an edit is worth, and how often; those of one step alone also change several things.
LEVELS = {1: 0.6, 2: 0.25, 3: 0.15}
_CELLS: tuple[Cell, ...] = tuple((row, column) for row, column in product(range(GRID), repeat=2))
_COLUMNS = tuple((row, column) for column, row in _CELLS)
ORDERS = (_CELLS, _COLUMNS, _CELLS[::-1], _COLUMNS[::-1])


@dataclass(frozen=True)
class Cases:
    """N things that are asked for.

    Attributes:
        plain: in plain words.
        truths: what a picture is checked on.
        images: uint8 [N, 64, 64, 3], as they should be.
        sources: as they were, for edits.
        seen: what the sources hold, in words.
    """

    plain: list[str]
    truths: list[Truth]
    images: NDArray[np.uint8]
    sources: NDArray[np.uint8] | None
    seen: list[str]

    def __len__(self) -> int:
        return len(self.plain)


def make_cases(
    executor: Executor,
    kind: Kind,
    count: int,
    split: Split,
    seed: int,
    levels: Mapping[int, float] = LEVELS,
) -> Cases:
    """A pure function of all but the executor.

    Args:
        levels: of edits, and how often each.
    """
    jobs = [
        executor.submit(_chunk, kind, start, min(CHUNK, count - start), split, seed, dict(levels))
        for start in range(0, count, CHUNK)
    ]
    parts = [job.result() for job in jobs]
    return Cases(
        list(chain.from_iterable(one.plain for one in parts)),
        list(chain.from_iterable(one.truths for one in parts)),
        np.concatenate([one.images for one in parts]),
        None if kind == "text" else np.concatenate([one.sources for one in parts]),
        list(chain.from_iterable(one.seen for one in parts)),
    )


def any_images(executor: Executor, count: int, split: Split, seed: int) -> NDArray[np.uint8]:
    """Pictures uint8 [N, 64, 64, 3] of things anywhere, every other one shaken a little: what an
    autoencoder has to know."""
    jobs = [
        executor.submit(_pictures, start, min(CHUNK, count - start), split, seed)
        for start in range(0, count, CHUNK)
    ]
    return np.concatenate([job.result() for job in jobs])


def right(images: NDArray[np.uint8], truths: Sequence[Truth], executor: Executor) -> list[bool]:
    """Whether each picture is right in every fact."""
    parts = [slice(start, start + LOOKED) for start in range(0, len(truths), LOOKED)]
    jobs = [executor.submit(_right, images[one], truths[one]) for one in parts]
    return list(chain.from_iterable(job.result() for job in jobs))


def is_right(image: Image.Image | NDArray[np.uint8], truth: Truth) -> bool:
    if isinstance(truth, Scene):
        return all(check(image, truth).facts.values())
    made = check_edit(image, truth) if isinstance(truth, Edit) else check_compound(image, truth)
    return all(made.facts.values())


def _right(images: NDArray[np.uint8], truths: Sequence[Truth]) -> list[bool]:
    return [is_right(image, truth) for image, truth in zip(images, truths, strict=True)]


def _chunk(
    kind: Kind, start: int, count: int, split: Split, seed: int, levels: dict[int, float]
) -> Cases:
    rngs = [
        random.Random(key("tiny-qwen", kind, split, seed, start + index)) for index in range(count)
    ]
    if kind == "text":
        scenes = [arranged(sample_scene(rng, "shapes", split), rng) for rng in rngs]
        told = [prompt(one) for one in scenes]
        return Cases(told, list(scenes), render_batch(scenes), None, told)
    edits = [_edit(rng, split, levels) for rng in rngs]
    return Cases(
        [one.instruction if isinstance(one, Edit) else instruction(one) for one in edits],
        list(edits),
        np.stack([_drawn(one.target) for one in edits]),
        np.stack([_drawn(one.source) for one in edits]),
        [described(_objects(one.source)) for one in edits],
    )


def _edit(rng: random.Random, split: Split, levels: dict[int, float]) -> Edit | CompoundEdit:
    (level,) = rng.choices(list(levels), list(levels.values()))
    if level == 1:
        return settled(edit(sample_scene(rng, "shapes", split), rng))
    return settled_steps(compound_edit(rng, level, split))


def _objects(scene: Scene | Sequence[SceneObject]) -> Sequence[SceneObject]:
    return scene.objects if isinstance(scene, Scene) else scene


def _drawn(scene: Scene | Sequence[SceneObject]) -> NDArray[np.uint8]:
    return np.asarray(render_objects(_objects(scene)))


def _pictures(start: int, count: int, split: Split, seed: int) -> NDArray[np.uint8]:
    scenes = []
    for index in range(start, start + count):
        rng = random.Random(key("tiny-qwen any", split, seed, index))
        scene = sample_scene(rng, "shapes", split)
        scenes.append(edit(scene, rng).target if index % 4 == 0 else scene)
    still, shaken = render_batch(scenes), render_batch(scenes, range(start, start + count))
    still[::2] = shaken[::2]
    return still


def arranged(scene: Scene, rng: random.Random) -> Scene:
    """The scene with its things in one of the orders; where the words say how two things stand,
    they stay where they are."""
    if scene.relation is not None:
        return scene
    cells = rng.choice(ORDERS)
    moved = [replace(item, cell=cell) for item, cell in zip(scene.objects, cells, strict=False)]
    return Scene(tuple(moved))


def settled(made: Edit) -> Edit:
    """The edit with what it adds in the first free cell, so that there is one way to add."""
    if made.kind != "add":
        return made
    taken = {item.cell for item in made.source.objects}
    cell = next(one for one in _CELLS if one not in taken)

    def put(item: SceneObject) -> SceneObject:
        return replace(item, cell=cell) if item in made.new else item

    return replace(made, target=Scene(tuple(map(put, made.target.objects))))


def settled_steps(made: CompoundEdit) -> CompoundEdit:
    """The same of an edit of several steps."""
    added = [step.noun for step in made.steps if step.kind == "add"]
    others = [item for item in made.target if item.noun not in added]
    taken = {item.cell for item in (*made.source, *others)}
    free = iter(cell for cell in _CELLS if cell not in taken)
    new = {noun: next(free) for noun in added}
    target = [replace(item, cell=new.get(item.noun, item.cell)) for item in made.target]
    return replace(made, target=tuple(target))


def described(objects: Sequence[SceneObject]) -> str:
    """What is in a picture of shapes: "two red circles and one blue square"."""
    groups = Counter(item.noun for item in objects)
    return " and ".join(counted(noun, count) for noun, count in groups.items())
