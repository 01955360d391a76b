"""A reward in one function: how much light and dark there is in an image.

rewards:
  custom:
    contrast:
      function: examples.rewards.contrast:contrast
      parameters: {most: 100.0}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from atelier.rewards import Golden, ScoreBatch, reward


def halves() -> Golden:
    """One grey, and half black and half white: no contrast, and as much as there is."""
    grey, halved = Image.new("L", (8, 8), 128), Image.new("L", (8, 8), 0)
    halved.paste(255, (0, 0, 8, 4))
    return ScoreBatch([grey, halved], ["", ""], [{}, {}], [0, 1]), [0.0, 1.0], 1e-6


@reward(value_range=(0.0, 1.0), version="1", golden=halves)
def contrast(
    images: Sequence[Image.Image],
    prompts: Sequence[str],
    metadata: Sequence[Mapping[str, Any]],
    most: float = 127.5,
) -> list[tuple[float, dict[str, float]]]:
    """Standard deviation of the grey values, divided by `most` and at most 1."""
    spread = [float(np.asarray(image.convert("L")).std()) for image in images]
    return [(min(one / most, 1.0), {"std": one}) for one in spread]
