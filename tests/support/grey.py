"""Rewards for random models: how light an image is, in [0, 1], of all images, of some, of none."""

from __future__ import annotations

import zlib

import numpy as np


def greyness(images, prompts, metadata):
    """Mean grey level / 255."""
    return [float(np.asarray(one.convert("L")).mean()) / 255 for one in images]


greyness.value_range = (0.0, 1.0)


def nothing(images, prompts, metadata):
    """No score for any image."""
    return [None for _ in images]


def greyness_of_some(images, prompts, metadata):
    """No score for the first three of what is scored together, of every other prompt."""
    values = greyness(images, prompts, metadata)
    odd = [zlib.crc32(prompt.encode()) % 2 for prompt in prompts]
    return [None if place < 3 and odd[place] else value for place, value in enumerate(values)]


greyness_of_some.value_range = (0.0, 1.0)
