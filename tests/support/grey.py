"""Rewards for random models: how light an image is, in [0, 1]; and one that scores nothing."""

from __future__ import annotations

import numpy as np


def greyness(images, prompts, metadata):
    """Mean grey level / 255."""
    return [float(np.asarray(one.convert("L")).mean()) / 255 for one in images]


greyness.value_range = (0.0, 1.0)


def nothing(images, prompts, metadata):
    """No score for any image."""
    return [None for _ in images]
