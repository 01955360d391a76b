"""How many regions a picture has: things, and lines of text, by the published rules.

Whoever finds things and reads text, these rules put the two together. A box is left, top, right,
bottom in pixels. Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import dist

Box = tuple[float, float, float, float]
Corners = Sequence[Sequence[float]]  # x, y of each, around the text

COVERED = 0.8  # share of the smaller of two boxes from which a thing is taken for the text there


@dataclass(frozen=True)
class ReadText:
    """A piece of text that was read, and how surely, in [0, 1]."""

    corners: Corners
    confidence: float


@dataclass(frozen=True)
class TextRules:
    """What counts as text; lengths in pixels, published for pictures of 1024 a side."""

    min_confidence: float = 0.85
    shortest_edge: float = 20.0  # of a piece of text
    same_line: float = 20.0  # between the middles of two pieces
    shortest_side: float = 10.0  # of a line, to be a region

    def scaled(self, factor: float) -> TextRules:
        """The same for a picture that is `factor` times as large."""
        lengths = (self.shortest_edge, self.same_line, self.shortest_side)
        return TextRules(self.min_confidence, *(factor * one for one in lengths))


PUBLISHED = TextRules()


@dataclass(frozen=True)
class Regions:
    """What was counted: things that are no text, and lines of text."""

    things: int
    lines: int

    @property
    def count(self) -> int:
        return self.things + self.lines


def merged(things: Iterable[Box], texts: Iterable[ReadText], rules: TextRules) -> Regions:
    """Things and text put together.

    A thing whose box and that of a line have more than `COVERED` of the smaller one in common is
    removed. So is whatever encloses a line, such as a panel or the background, as published.
    """
    lines = text_lines(texts, rules)
    left = [one for one in things if not any(_share(one, line) > COVERED for line in lines)]
    large = [one for one in lines if min(_sides(one)) >= rules.shortest_side]
    return Regions(len(left), len(large))


def text_lines(texts: Iterable[ReadText], rules: TextRules) -> list[Box]:
    """Boxes of the lines that sure and large enough pieces of text make, from top to bottom.

    A piece belongs to the line before it where its middle is near the line's; the line's moves
    half-way to each new piece.
    """
    sure = (one.corners for one in texts if one.confidence >= rules.min_confidence)
    boxes = [_box(one) for one in sure if _shortest_edge(one) >= rules.shortest_edge]
    lines: list[Box] = []
    height = 0.0
    for box in sorted(boxes, key=_middle):
        if lines and abs(_middle(box) - height) <= rules.same_line:
            lines[-1] = _around(lines[-1], box)
            height = (height + _middle(box)) / 2
        else:
            lines.append(box)
            height = _middle(box)
    return lines


def _share(one: Box, other: Box) -> float:
    """What two boxes have in common, by the smaller of them; 0 for one without extent."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min(_area(one), _area(other))
    return max(width, 0.0) * max(height, 0.0) / smaller if smaller > 0 else 0.0


def _sides(box: Box) -> tuple[float, float]:
    return box[2] - box[0], box[3] - box[1]


def _area(box: Box) -> float:
    width, height = _sides(box)
    return width * height


def _middle(box: Box) -> float:
    return (box[1] + box[3]) / 2


def _around(one: Box, other: Box) -> Box:
    left, top = min(one[0], other[0]), min(one[1], other[1])
    return left, top, max(one[2], other[2]), max(one[3], other[3])


def _box(corners: Corners) -> Box:
    xs, ys = [point[0] for point in corners], [point[1] for point in corners]
    return min(xs), min(ys), max(xs), max(ys)


def _shortest_edge(corners: Corners) -> float:
    return min(dist(one, corners[index - 1]) for index, one in enumerate(corners))
