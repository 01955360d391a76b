"""Scene pairs: a scene and another that differs in one thing, what the thing is called."""

import random
from typing import Literal

from atelier.data.questions import altered
from atelier.data.scenes import Scene, Split, split_of

Category = Literal["word", "colour", "shape", "count", "position"]
CATEGORIES: tuple[Category, ...] = ("word", "colour", "shape", "count", "position")
TRIES = 200  # at a partner of the same category in the split; about 15 % are held out


def partner(scene: Scene, split: Split, rng: random.Random) -> Scene | None:
    """A scene of the same split that differs from it in one thing; None where none is found.

    The category is drawn before the split is looked at, so that held-out pairs differ in what
    training pairs do: in a word, whose spelling decides the split, as often as in an ink.

    Raises:
        DataError: nothing about the scene can be changed.
    """
    other = altered(scene, rng)
    category = difference(scene, other)
    for _ in range(TRIES):
        if split_of(other) == split and difference(scene, other) == category:
            return other
        other = altered(scene, rng)
    return None


def difference(scene: Scene, other: Scene) -> Category:
    """What is different about a scene that `questions.altered` made of another."""
    if scene.word != other.word:
        texts = {one.word and one.word.text for one in (scene, other)}
        return "word" if len(texts) > 1 else "colour"
    if len(scene.objects) != len(other.objects):
        return "count"
    objects = list(zip(scene.objects, other.objects, strict=True))
    if any(one.shape != two.shape for one, two in objects):
        return "shape"
    if any(one.colour != two.colour for one, two in objects):
        return "colour"
    return "position"
