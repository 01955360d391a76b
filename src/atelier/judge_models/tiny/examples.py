"""Questions about rendered scenes, as the arrays that the judge learns from."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from atelier.data.questions import NO, YES, Question, all_questions
from atelier.data.render import render_batch
from atelier.data.scenes import Kind, Scene, Split, sample_scene

CHUNK = 500  # scenes a task of the pool


@dataclass(frozen=True)
class Examples:
    """`images` uint8 [N, 64, 64, 3]; questions, each about the image with its number."""

    images: NDArray[np.uint8]
    questions: Sequence[Question]
    image_of: NDArray[np.int64]

    def by_kind(self) -> dict[tuple[str, str], NDArray[np.int64]]:
        """Numbers of the questions of each kind, of each answer too where that is yes or no."""
        found: dict[tuple[str, str], list[int]] = {}
        for number, one in enumerate(self.questions):
            answer = one.answer if one.answer in (YES, NO) else ""
            found.setdefault((one.kind, answer), []).append(number)
        return {key: np.asarray(own, np.int64) for key, own in sorted(found.items())}


def make_examples(scenes: int, split: Split, seed: int, workers: int | None = None) -> Examples:
    """Scenes of one split and all their questions; a pure function of number, split and seed.

    Half of the scenes are shapes, a fifth words beside shapes, the rest words; words have mostly
    three letters, as the embedded generator writes them.
    """
    starts = range(0, scenes, CHUNK)
    make = partial(_make_chunk, split=split, seed=seed, scenes=scenes)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        chunks = list(pool.map(make, starts))
    offsets = np.cumsum([0, *(len(images) for images, _, _ in chunks)])
    return Examples(
        np.concatenate([images for images, _, _ in chunks]),
        [question for _, questions, _ in chunks for question in questions],
        np.concatenate(
            [own + offset for (_, _, own), offset in zip(chunks, offsets[:-1], strict=True)]
        ),
    )


def _make_chunk(
    start: int, split: Split, seed: int, scenes: int
) -> tuple[NDArray[np.uint8], list[Question], NDArray[np.int64]]:
    numbers = range(start, min(start + CHUNK, scenes))
    made, questions, image_of = [], [], []
    for place, number in enumerate(numbers):
        rng = random.Random(f"{seed} {split} {number}")
        scene = _scene(rng, split)
        asked = list(all_questions(scene, rng))
        made.append(scene)
        questions += asked
        image_of += [place] * len(asked)
    images = render_batch(made, [seed * 1_000_003 + number for number in numbers])
    return images, questions, np.asarray(image_of, np.int64)


def _scene(rng: random.Random, split: Split) -> Scene:
    kinds: tuple[Kind, ...] = ("shapes", "word", "mixed")
    (kind,) = rng.choices(kinds, (5, 3, 2))
    return sample_scene(rng, kind, split, rng.choice((2, 3, 3, 3, 4)))
