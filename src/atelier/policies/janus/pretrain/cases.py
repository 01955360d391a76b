"""What one example of the pre-training is about: a scene, one that differs from it, and an edit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atelier.data.edits import Edit, edit
from atelier.data.keys import key
from atelier.data.questions import altered
from atelier.data.render import render_batch
from atelier.data.scenes import Scene, Split, sample_scene, split_of

IMAGES = 3  # of a case: the scene, the other one, what the edit makes


@dataclass(frozen=True)
class Case:
    """`other` differs from `scene` in one fact; `edit` is of `scene`. All of one split."""

    scene: Scene
    other: Scene
    edit: Edit

    @property
    def shown(self) -> tuple[Scene, Scene, Scene]:
        """What its images show."""
        return self.scene, self.other, self.edit.target


def make_case(split: Split, seed: int, index: int) -> Case:
    """A case of shapes, a pure function of its arguments."""
    rng = random.Random(key("tiny-janus", split, seed, index))
    while True:
        scene = sample_scene(rng, "shapes", split)
        for _ in range(50):  # some scenes have few neighbours in the smaller split
            other, edited = altered(scene, rng), edit(scene, rng)
            if split_of(other) == split_of(edited.target) == split:
                return Case(scene, other, edited)


def make_images(cases: Sequence[Case], split: Split, seed: int, start: int) -> NDArray[np.uint8]:
    """uint8 [IMAGES * N, 64, 64, 3]: those of each case, one case after the other.

    Args:
        start: number of the first case.
    """
    shown = [scene for case in cases for scene in case.shown]
    first = IMAGES * start
    seeds = [key("tiny-janus jitter", split, seed, first + n) for n in range(len(shown))]
    return render_batch(shown, seeds)
