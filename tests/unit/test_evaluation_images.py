"""Image statistics on pictures whose numbers are known, and the sheet of a sample."""

import numpy as np
import pytest

from atelier.evaluation.grid import contact_sheet
from atelier.evaluation.image_statistics import NAMES, image_statistics


def flat(value, shape=(8, 8)):
    return np.full((*shape, 3), value, dtype=np.uint8)


def test_flat_pictures():
    assert image_statistics(flat(0)) == {
        "dark_share": 1.0,
        "edge_density": 0.0,
        "color_entropy": 0.0,
    }
    assert image_statistics(flat(255))["dark_share"] == 0.0
    assert tuple(image_statistics(flat(9, (1, 1)))) == NAMES


def test_half_black_half_white():
    image = flat(255)
    image[:, :4] = 0
    found = image_statistics(image)
    assert found["dark_share"] == 0.5
    assert found["color_entropy"] == 1.0
    assert found["edge_density"] == pytest.approx(8 / (2 * 7 * 8))


def test_noise_has_more_edges_and_colours_than_a_picture():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    found = image_statistics(noise)
    assert found["edge_density"] > 0.5
    assert 8 < found["color_entropy"] <= 9


def test_a_sheet_shows_every_image_once():
    values = list(range(0, 200, 20))
    sheet = contact_sheet([flat(v) for v in values], [["t", "read"]] * len(values), columns=4)
    counts = {color: count for count, color in sheet.getcolors(100_000)}
    assert all(counts[(v, v, v)] >= 96 * 96 * 0.9 for v in values)
    with pytest.raises(ValueError, match="caption"):
        contact_sheet([], [])
