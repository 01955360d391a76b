"""Regions without a model: areas of one colour, and lines of text.

Pixels belong together where neighbours hardly differ. An area that reaches from side to side of the
picture, both ways, is its ground and no region; specks and thin lines are none either. Counts are
lower than those of SAM 2, which also finds parts of things, so readability falls later.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from atelier.data.pictures import opaque
from atelier.mmmg.regions import PUBLISHED, Box, Regions, merged
from atelier.rewards.regions.text import read_text
from atelier.rewards.scorers import ocr_engine

WORKING_SIDE = 256  # larger pictures are made smaller: soft edges would join what they part
TEXT_SIDE = 512  # smaller pictures are enlarged, or the reader misses their text
PUBLISHED_SIDE = 1024  # for which lengths of text are published
SAME_COLOUR = 24  # greatest difference of a channel, of 255, between neighbours of one area
SPECK = 5 / 64**2  # share of the picture up to which an area is a speck


class ClassicalCounter:
    """Counts areas of one colour and, with `reads_text`, lines of text instead of letters."""

    def __init__(self, reads_text: bool = True) -> None:
        self._reads_text = reads_text

    @property
    def version(self) -> str:
        return f"classical-1/{ocr_engine.version(True)}" if self._reads_text else "classical-1"

    def weights(self) -> Sequence[Path]:
        return list(ocr_engine.model_files(detect=True).values()) if self._reads_text else ()

    def count(self, image: Image.Image) -> Regions:
        picture = opaque(image)
        texts, factor = [], 1.0
        if self._reads_text:
            factor = max(1.0, TEXT_SIDE / max(picture.size))
            enlarged = picture.resize(_times(picture.size, factor)) if factor > 1 else picture
            texts = read_text(enlarged, symbols=False)
        side = factor * max(picture.size)
        things = [_scaled(box, side) for box in areas(picture)]
        return merged(things, texts, PUBLISHED.scaled(side / PUBLISHED_SIDE))


def areas(picture: Image.Image) -> list[Box]:
    """Boxes of the areas of one colour in an RGB picture, in shares of its longer side."""
    scale = min(1.0, WORKING_SIDE / max(picture.size))
    small = picture.resize(_times(picture.size, scale), Image.Resampling.BOX)
    labels = _labels(np.asarray(small, dtype=np.int16))
    height, width = labels.shape
    sizes, solid = np.bincount(labels.ravel()), _solid(labels)
    found: list[Box] = []
    for label, (rows, columns) in enumerate(ndimage.find_objects(labels + 1)):
        is_ground = rows.stop - rows.start == height and columns.stop - columns.start == width
        if label in solid and sizes[label] > SPECK * labels.size and not is_ground:
            box = (columns.start, rows.start, columns.stop, rows.stop)
            found.append(_scaled(box, 1 / max(height, width)))
    return found


def _solid(labels: NDArray[np.int32]) -> set[int]:
    """The areas that hold a square of 3 x 3 pixels: a soft edge makes narrow ones of its own."""
    inside = ndimage.minimum_filter(labels, 3) == ndimage.maximum_filter(labels, 3)
    return {int(label) for label in np.unique(labels[inside])}


def _labels(pixels: NDArray[np.int16]) -> NDArray[np.int32]:
    """[H, W] from 0: the area that each pixel of [H, W, 3] belongs to."""
    height, width = pixels.shape[:2]
    numbers = np.arange(height * width).reshape(height, width)
    firsts, seconds = [], []
    for axis in (0, 1):
        same = np.abs(np.diff(pixels, axis=axis)).max(axis=2) <= SAME_COLOUR
        here, there = np.delete(numbers, -1, axis), np.delete(numbers, 0, axis)
        firsts.append(here[same])
        seconds.append(there[same])
    links = (np.concatenate(firsts), np.concatenate(seconds))
    graph = coo_array((np.ones(len(links[0]), bool), links), shape=(numbers.size, numbers.size))
    _, labels = connected_components(graph, directed=False)
    return labels.reshape(height, width)


def _times(size: tuple[int, int], factor: float) -> tuple[int, int]:
    width, height = (max(1, round(factor * one)) for one in size)
    return width, height


def _scaled(box: Box, factor: float) -> Box:
    left, top, right, bottom = (factor * one for one in box)
    return left, top, right, bottom
