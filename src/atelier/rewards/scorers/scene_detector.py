"""A detector for `rewards.geneval` that finds the shapes of the scene world, by exact rules.

Classes are circle, square, triangle and cross; colours are the inks. It needs no model, so prompts
about shapes can be trained on anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from atelier.data.gold import find_shapes
from atelier.rewards.base import ScoreBatch
from atelier.rewards.scorers.custom import Golden, reward
from atelier.rewards.scorers.geneval import Detection
from atelier.rewards.scorers.judged import red_circle


def _golden() -> Golden:
    """A red circle, and an empty picture in its place."""
    include = [{"class": "circle", "count": 1, "color": "red"}]
    images = [red_circle(), Image.new("RGB", (64, 64), "white")]
    metadata = [{"tag": "colors", "include": include}] * 2
    return ScoreBatch(images, ["a red circle"] * 2, metadata, [0, 0]), [1.0, 0.0], 1e-6


@reward(version="scenes-1", golden=_golden)
def detect(
    images: Sequence[Image.Image], metadata: Sequence[Mapping[str, Any]]
) -> list[list[Detection]]:
    """The shapes in each image, each with confidence 1; boxes in shares of the image."""
    return [
        [Detection(one.shape, one.box, 1.0, one.colour) for one in find_shapes(image)]
        for image in images
    ]
