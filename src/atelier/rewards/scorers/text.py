"""The published OCR reward as pure functions of strings.

The rule has weak spots that are kept, because published numbers are made with it: text around the
target costs nothing, the order of the lines matters, punctuation counts. The options of `OcrConfig`
(box order, Unicode normalisation) are the remedies, and are off by default.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal

Normalization = Literal["none", "NFKC"]
Box = Sequence[Sequence[float]]


def normalize(text: str, unicode_normalization: Normalization = "none") -> str:
    """Lower case without ASCII spaces; other white space stays, as in the published rule."""
    return composed(text, unicode_normalization).lower().replace(" ", "")


def composed(text: str, unicode_normalization: Normalization) -> str:
    """The text in the form in which texts are compared."""
    return unicodedata.normalize("NFKC", text) if unicode_normalization == "NFKC" else text


def similarity(
    target: str, lines: Sequence[str], unicode_normalization: Normalization = "none"
) -> float:
    """How much of the target can be read in the recognised lines, in [0, 1].

    1 if the target is a part of the lines joined without a separator, else
    1 - min(edit distance, len(target)) / len(target).

    Raises:
        ValueError: the target is empty once normalised: no score exists.
    """
    wanted, read = _both(target, lines, unicode_normalization)
    if wanted in read:
        return 1.0
    return 1.0 - min(levenshtein(wanted, read), len(wanted)) / len(wanted)


def exact_match(
    target: str, lines: Sequence[str], unicode_normalization: Normalization = "none"
) -> bool:
    """Whether the joined lines are the target and nothing else (normalised as in `similarity`).

    Raises:
        ValueError: the target is empty once normalised.
    """
    wanted, read = _both(target, lines, unicode_normalization)
    return wanted == read


def levenshtein(first: str, second: str) -> int:
    """Edits (insert, delete, replace one character) that turn one string into the other."""
    row = list(range(len(second) + 1))
    for i, left in enumerate(first, start=1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(second, start=1):
            replaced = diagonal + (left != right)
            diagonal = row[j]
            row[j] = min(replaced, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def reading_order(boxes: Sequence[Box]) -> list[int]:
    """Indices of text boxes (corner points x, y) from top to bottom, and left to right in a row.

    Two boxes share a row when the vertical centre of one lies within the other's height.
    """
    spans = [_span(box) for box in boxes]
    rows: list[list[int]] = []
    for index in sorted(range(len(boxes)), key=lambda i: spans[i][:2]):
        top, bottom = spans[index][0], spans[index][2]
        first = spans[rows[-1][0]] if rows else None
        if first is not None and (
            first[0] <= (top + bottom) / 2 <= first[2] or top <= (first[0] + first[2]) / 2 <= bottom
        ):
            rows[-1].append(index)
        else:
            rows.append([index])
    return [index for row in rows for index in sorted(row, key=lambda i: spans[i][1])]


def _span(box: Box) -> tuple[float, float, float]:
    """Top, left and bottom of a box."""
    xs, ys = [point[0] for point in box], [point[1] for point in box]
    return min(ys), min(xs), max(ys)


def _both(
    target: str, lines: Sequence[str], unicode_normalization: Normalization
) -> tuple[str, str]:
    wanted = normalize(target, unicode_normalization)
    if not wanted:
        raise ValueError("the target text is empty")
    return wanted, normalize("".join(lines), unicode_normalization)
