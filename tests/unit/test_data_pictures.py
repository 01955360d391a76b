"""The square that a policy, a judge and a checker look at."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from atelier.data.pictures import MOST_ELONGATED, square


def noise(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def resized_whole(picture: Image.Image, side: int) -> Image.Image:
    """Spec janus 1.1, without a cut before it is resized."""
    while min(picture.size) >= 2 * side:
        picture = picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.BOX)
    scale = side / min(picture.size)
    size = (round(picture.width * scale), round(picture.height * scale))
    picture = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))


@pytest.mark.parametrize(
    "size", [(40, 40), (41, 40), (64, 48), (30, 200), (333, 100), (7, 7 * MOST_ELONGATED)]
)
def test_ordinary_pictures_are_resized_whole(size: tuple[int, int]) -> None:
    assert square(noise(*size), 32).tobytes() == resized_whole(noise(*size), 32).tobytes()


@pytest.mark.parametrize("size", [(4, 100), (4, 101), (100, 4), (201, 8), (1, 18)])
def test_long_ones_have_the_same_middle(size: tuple[int, int]) -> None:
    found, whole = (np.asarray(one(noise(*size), 32), int) for one in (square, resized_whole))
    assert np.abs(found - whole).max() <= 1


@pytest.mark.parametrize("size", [(1, 60_000), (1_000_000, 1)])
def test_a_strip_of_one_pixel_takes_no_memory(size: tuple[int, int]) -> None:
    """Resized whole it would be 384 x 23 040 000 pixels and more, which the library refuses."""
    assert square(Image.new("RGB", size, "red"), 384).getcolors() == [(384 * 384, (255, 0, 0))]
