"""Image statistics on pictures whose numbers are known, and the grids."""

import numpy as np
import pytest

from atelier.evaluation.grid import comparison_grid, contact_sheet
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


def test_a_comparison_has_a_column_a_step_and_a_row_a_prompt():
    columns = {"step 0": [flat(10), flat(20), flat(30)], "step 60": [flat(40), flat(50), flat(60)]}
    grid = comparison_grid(columns, ["CAT", "DOG", "a caption that is far too long for its place"])
    colors = {color for _, color in grid.getcolors(100_000)}
    assert {(v, v, v) for v in (10, 20, 30, 40, 50, 60)} <= colors
    wide = comparison_grid({**columns, "step 90": columns["step 0"]})
    assert wide.height == grid.height
    with pytest.raises(ValueError, match="equal columns"):
        comparison_grid({"a": [flat(1)], "b": []})
    with pytest.raises(ValueError, match="captions"):
        comparison_grid(columns, ["one"])


def test_a_sheet_shows_every_image_once():
    values = list(range(0, 200, 20))
    sheet = contact_sheet([flat(v) for v in values], [["t", "read"]] * len(values), columns=4)
    counts = {color: count for count, color in sheet.getcolors(100_000)}
    assert all(counts[(v, v, v)] >= 96 * 96 * 0.9 for v in values)
    with pytest.raises(ValueError, match="caption"):
        contact_sheet([], [])
