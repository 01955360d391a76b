import re
from xml.etree import ElementTree

import pytest

from atelier.report.charts import Series, line_chart, running_mean, ticks


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.55, 0.73), (-3e-5, 2e-4), (5, 5), (0, 0), (-1200, 40)]
)
def test_ticks_reach_around_the_values_and_are_few(low, high):
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert found == sorted(set(found))
    assert 2 <= len(found) <= 12


def test_a_higher_value_is_drawn_higher():
    svg = line_chart([Series("reward", [(0, 0.1), (10, 0.9)])])
    points = re.search(r'<polyline points="([^"]+)"', svg)[1].split()
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in points)
    assert x1 > x0
    assert y1 < y0  # SVG counts downwards


def test_chart_is_well_formed_and_escapes_names():
    band = [(0.0, 0.2), (0.1, 0.4)]
    html = line_chart([Series("a < b & c", [(0, 0.1), (1, 0.3)], band)])
    svg = html[: html.index("</svg>") + len("</svg>")]
    ElementTree.fromstring(svg)
    assert "a &lt; b &amp; c" in html


def test_nothing_to_draw_gives_nothing():
    assert line_chart([Series("empty", [])]) == ""


def test_running_mean_keeps_the_ends_and_a_constant():
    points = [(float(step), 2.0) for step in range(50)]
    assert running_mean(points) == points
