"""Scenes, prompts and rendered images of the training and the held-out split."""

import random
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from atelier.data.keys import key, uniform
from atelier.data.render import render_batch
from atelier.data.scenes import Kind, Scene, Split, prompt, sample_scene

CHUNK = 500
Rendered = tuple[NDArray[np.uint8], list[str], list[str]]


def training_images(
    executor: Executor,
    count: int,
    seed: int,
    shares: tuple[float, float],
    word_lengths: tuple[int, ...],
) -> Rendered:
    """Images uint8 [N, 64, 64, 3], their prompts and words ("" without one), training split.

    `shares` are those of word scenes and of mixed scenes. Rendered in parallel, same for any
    number of workers.
    """
    jobs = [
        executor.submit(_render_chunk, start, min(CHUNK, count - start), seed, shares, word_lengths)
        for start in range(0, count, CHUNK)
    ]
    return _join([job.result() for job in jobs])


def heldout_words(count: int, seed: int) -> Rendered:
    """Word scenes of three letters that training never shows."""
    scenes = [
        sample_scene(random.Random(key("tiny-sd3 heldout", seed, index)), "word", "heldout")
        for index in range(count)
    ]
    return _rendered(scenes, "tiny-sd3 heldout jitter", seed, 0)


def _render_chunk(
    start: int, count: int, seed: int, shares: tuple[float, float], word_lengths: tuple[int, ...]
) -> Rendered:
    split: Split = "train"
    scenes = []
    for index in range(start, start + count):
        draw = uniform("tiny-sd3 kind", seed, index)
        kind: Kind = (
            "word" if draw < shares[0] else "mixed" if draw < shares[0] + shares[1] else "shapes"
        )
        rng = random.Random(key("tiny-sd3 scene", seed, index))
        length = rng.choice(word_lengths)
        scenes.append(sample_scene(rng, kind, split, word_length=length))
    return _rendered(scenes, "tiny-sd3 jitter", seed, start)


def _rendered(scenes: Sequence[Scene], label: str, seed: int, start: int) -> Rendered:
    seeds = [key(label, seed, start + index) for index in range(len(scenes))]
    words = ["" if scene.word is None else scene.word.text for scene in scenes]
    return render_batch(scenes, seeds), [prompt(scene) for scene in scenes], words


def _join(parts: list[Rendered]) -> Rendered:
    images, prompts, words = zip(*parts, strict=True)
    return np.concatenate(images), list(chain(*prompts)), list(chain(*words))
