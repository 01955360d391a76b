"""The square that a policy, a judge and a checker look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from atelier.data.ground_truth import picture_problem, source_image
from atelier.data.pictures import MOST_ELONGATED, opaque, square
from atelier.data.prompts import Prompt
from atelier.errors import DataError


def noise(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def resized_whole(picture: Image.Image, side: int) -> Image.Image:
    """Without a cut before it is resized."""
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


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "<u2"), ("I;16B", ">u2"), ("I", "<i4")])
def test_grey_levels_of_sixteen_bits_are_scaled(mode: str, kind: str) -> None:
    """Clipped at 255, all but the darkest of a scan would be white."""
    levels = np.array([[0, 257, 32896, 65535]], kind)
    picture = Image.frombytes(mode, (4, 1), levels.tobytes())
    assert np.asarray(opaque(picture))[0].tolist() == [[one] * 3 for one in (0, 1, 128, 255)]


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_grey_levels_without_a_known_white_are_refused(tmp_path: Path, kind: str) -> None:
    """As fractions of 1 they would all be black, and as 32 bits all white."""
    file = tmp_path / "deep.tiff"
    Image.fromarray(np.array([[0, 1], [1, 70_000]], kind)).save(file)
    assert "deep.tiff has grey levels" in (picture_problem(file) or "")
    with pytest.raises(DataError, match=r"deep\.tiff has grey levels .* save it with 8 or 16 bits"):
        source_image(Prompt(0, 0, "make it red", {"source_image": str(file)}))


def test_a_scan_of_sixteen_bits_is_read_as_it_looks(tmp_path: Path) -> None:
    file = tmp_path / "scan.png"
    Image.fromarray(np.full((4, 4), 32896, np.uint16)).save(file)
    assert picture_problem(file) is None
    found = source_image(Prompt(0, 0, "make it red", {"source_image": str(file)}))
    assert found is not None
    assert found.getcolors() == [(16, (128, 128, 128))]
