"""The published OCR rule: golden values, and the options beside it."""

import pytest

from atelier.rewards.scorers.text import (
    exact_match,
    levenshtein,
    normalize,
    reading_order,
    similarity,
)


@pytest.mark.parametrize(
    ("target", "lines", "expected"),
    [
        ("Hello World", ["HELLO", "WORLD"], 1.0),
        ("Hello World", ["Helo", "Wrld"], 0.8),
        ("SALE", ["SALE50%OFF"], 1.0),
        ("OPEN", [], 0.0),
        ("OPEN", ["CLOSED SHOP TODAY"], 0.0),
        ("Coffee", ["Cofee", "shop"], 0.166667),
        ("abc", ["c", "ab"], 0.333333),
    ],
)
def test_similarity_has_the_golden_values(target, lines, expected):
    assert similarity(target, lines) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("target", ["", "  "])
def test_an_empty_target_has_no_score(target):
    with pytest.raises(ValueError, match="empty"):
        similarity(target, ["anything"])
    with pytest.raises(ValueError, match="empty"):
        exact_match(target, [""])


def test_exact_match_is_stricter_than_the_substring_rule():
    assert exact_match("Hello World", ["HELLO", "WORLD"])
    assert not exact_match("SALE", ["SALE50%OFF"])


@pytest.mark.parametrize(
    ("first", "second", "edits"),
    [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2)],
)
def test_levenshtein(first, second, edits):
    assert levenshtein(first, second) == edits == levenshtein(second, first)


def test_only_ascii_spaces_go_and_unicode_is_kept_unless_asked():
    assert normalize("A b\tC") == "ab\tc"
    full_width = "\uff33\uff21\uff2c\uff25"
    assert similarity("SALE", [full_width]) == 0.0
    assert similarity("SALE", [full_width], "NFKC") == 1.0


def box(left, top, width=20, height=10):
    right, bottom = left + width, top + height
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def test_reading_order_is_by_rows_then_from_the_left():
    boxes = [box(50, 32), box(40, 2), box(5, 0), box(0, 30)]
    assert reading_order(boxes) == [2, 1, 3, 0]
    assert reading_order([]) == []
