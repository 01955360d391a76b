"""Test points of scenes, as UniGenBench has them: what a prompt asks for, piece by piece.

Every point is a dimension of the benchmark's, what it is about, a yes-or-no question in the words
of `questions`, and a check by the gold checker. Source: DeepGen-RL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atelier.data.gold import GoldResult, check
from atelier.data.questions import ANSWER, how_many
from atelier.data.scenes import Scene, Word, counted, plural, prompt
from atelier.unigenbench.points import Point

TEXT, LAYOUT = "Text Generation", "Entity Layout - Two-Dimensional Space"
QUANTITY, COLOUR, SHAPE = (f"Attribute - {name}" for name in ("Quantity", "Color", "Shape"))


@dataclass(frozen=True)
class ScenePoint:
    """`holds` says of what the checker found whether the point is shown."""

    point: Point
    holds: Callable[[GoldResult], bool]


def scene_points(scene: Scene) -> list[Point]:
    """The test points of a scene: of a word its letters and its ink; of each kind of objects how
    many there are (unless the prompt says "a"), their shape and their colour; how things stand to
    one another, where the prompt says it."""
    return [one.point for one in _points(scene)]


def gold_verdicts(image: NDArray[np.uint8], scene: Scene) -> list[bool]:
    """Whether an image shows each of `scene_points`, by exact rules."""
    found = check(image, scene)
    return [one.holds(found) for one in _points(scene)]


def _points(scene: Scene) -> Iterator[ScenePoint]:
    if scene.word is not None:
        yield from _of_word(scene.word)
    for noun, count in scene.groups.items():
        yield from _of_objects(noun, None if scene.relation else count)
    if scene.relation is not None:
        first, second = (item.noun for item in scene.objects)
        asked = f"Is the {first} {scene.relation} the {second}?"
        yield _point(LAYOUT, prompt(scene), asked, lambda found: found.facts["relation"])
    if scene.word_relation is not None:
        ((noun, count),) = scene.groups.items()
        where = f"{scene.word_relation} the {plural(noun, count)}"
        asked = f"Is the word {where}?"
        yield _point(LAYOUT, f"the word {where}", asked, lambda found: found.facts["word relation"])


def _of_word(word: Word) -> Iterator[ScenePoint]:
    letters = [f"letter {place}" for place in range(1, len(word.text) + 1)] + ["letters"]
    yield _point(
        TEXT,
        f'the word "{word.text}"',
        f'Is the word "{word.text}"?',
        lambda found: all(found.facts[name] for name in letters),
    )
    yield _point(
        COLOUR,
        f"the word in {word.colour}",
        f"Is the word {word.colour}?",
        lambda found: found.facts["word colour"],
    )


def _of_objects(noun: str, count: int | None) -> Iterator[ScenePoint]:
    """Of one kind of objects; without their number where `count` is None."""
    colour, shape = noun.split()
    if count is not None:
        text = counted(noun, count)
        yield _point(QUANTITY, text, how_many(noun, count), lambda found: found.facts[noun])
    there = f"Is there a {noun}?"
    yield _point(COLOUR, f"{colour}, of a {shape}", there, lambda found: noun in found.nouns)
    yield _point(
        SHAPE,
        f"a {shape}",
        there,
        lambda found: any(one.split()[1] == shape for one in found.nouns),
    )


def _point(
    name: str, description: str, question: str, holds: Callable[[GoldResult], bool]
) -> ScenePoint:
    return ScenePoint(Point(name, description, f"{question} {ANSWER}"), holds)
