"""Line charts as SVG text: no script, no library, colours from the page's light or dark style.

Classes `series-0`, `series-1`, ... take their colours from page.css.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from atelier.legible import legible

WIDTH, HEIGHT = 400, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 34
COLORS = 8  # in page.css; more series begin again
END = 1e300  # of any axis: the span of larger numbers is no float


@dataclass(frozen=True)
class Series:
    """A named curve; `band` is (low, high) for every point, e.g. a 95 % interval."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] | None = None
    smooth: bool = False  # draw the points faintly and a running mean over them
    color: int | None = None  # number of the colour; default: the series' place in the chart


def line_chart(series: Sequence[Series], x_label: str = "step") -> str:
    """One chart with a legend; an empty string when there is nothing to draw."""
    shown = [_within(one) for one in series if one.points]
    if not shown:
        return ""
    scale = _Scale.of(shown)
    body = [_axes(scale, x_label)]
    colors = [index if one.color is None else one.color for index, one in enumerate(shown)]
    body += [_curve(one, color, scale) for one, color in zip(shown, colors, strict=True)]
    legend = "".join(
        f'<span class="key series-{color % COLORS}"><i></i>{escape(name)}</span>'
        for name, color in dict(zip((one.name for one in shown), colors, strict=True)).items()
    )
    title = escape(", ".join(dict.fromkeys(one.name for one in shown)))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f'{"".join(body)}</svg><div class="legend">{legend}</div>'
    )


def _within(series: Series) -> Series:
    """With a readable name, and what is beyond an axis at its end."""
    points = [(_clipped(x), _clipped(y)) for x, y in series.points]
    band = series.band and [(_clipped(low), _clipped(high)) for low, high in series.band]
    return replace(series, name=legible(series.name), points=points, band=band)


def _clipped(value: float) -> float:
    return min(max(value, -END), END)


@dataclass(frozen=True)
class _Scale:
    x_low: float
    x_high: float
    y_ticks: Sequence[float]

    @classmethod
    def of(cls, series: Sequence[Series]) -> _Scale:
        xs = [x for one in series for x, _ in one.points]
        ys = [y for one in series for _, y in one.points]
        ys += [y for one in series for pair in one.band or () for y in pair]
        low, high = min(xs), max(xs)
        return cls(low, high if high > low else low + 1, ticks(min(ys), max(ys)))

    def x(self, value: float) -> float:
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that reach from below `low` to above `high`, about `about` of them."""
    span = (high - low) or abs(high) or 1.0
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        last += 1
    return [round(index * step, 12) for index in range(first, last + 1)]


def running_mean(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Mean over a window of a tenth of the points, centred; what the eye is led by."""
    half = max(1, len(points) // 20)
    means = []
    for index, (x, _) in enumerate(points):
        near = points[max(0, index - half) : index + half + 1]
        means.append((x, sum(y for _, y in near) / len(near)))
    return means


def _axes(scale: _Scale, x_label: str) -> str:
    parts = []
    for tick in scale.y_ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{tick:.6g}</text>'
        )
    inside = [t for t in ticks(scale.x_low, scale.x_high) if scale.x_low <= t <= scale.x_high]
    for tick in inside:
        parts.append(
            f'<text class="tick" x="{scale.x(tick)}" y="{HEIGHT - BOTTOM + 16}" '
            f'text-anchor="middle">{tick:.6g}</text>'
        )
    parts.append(
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">'
        f"{escape(x_label)}</text>"
    )
    return "".join(parts)


def _curve(series: Series, color: int, scale: _Scale) -> str:
    parts = []
    if series.band:
        xs = [x for x, _ in series.points]
        upper = [(x, high) for x, (_, high) in zip(xs, series.band, strict=True)]
        lower = [(x, low) for x, (low, _) in zip(xs, series.band, strict=True)]
        parts.append(f'<polygon class="band" points="{_points(upper + lower[::-1], scale)}"/>')
    if series.smooth and len(series.points) > 4:
        parts.append(f'<polyline class="faint" points="{_points(series.points, scale)}"/>')
        parts.append(f'<polyline points="{_points(running_mean(series.points), scale)}"/>')
    else:
        parts.append(f'<polyline points="{_points(series.points, scale)}"/>')
        parts += [_dot(series.name, x, y, scale) for x, y in series.points[:400]]
    return f'<g class="series-{color % COLORS}">{"".join(parts)}</g>'


def _dot(name: str, x: float, y: float, scale: _Scale) -> str:
    label = escape(f"{name} at {x:g}: {y:.4g}")
    return f'<circle cx="{scale.x(x)}" cy="{scale.y(y)}" r="3"><title>{label}</title></circle>'


def _points(points: Sequence[tuple[float, float]], scale: _Scale) -> str:
    return " ".join(f"{scale.x(x)},{scale.y(y)}" for x, y in points)
