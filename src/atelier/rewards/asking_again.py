"""Scores that were missing for now and are asked for again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atelier.rewards.base import Missing, Score, Scores

_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0


def missing_for_now(scores: Scores) -> int:
    """How many scores are missing and may be there when asked for again."""
    return sum(_is_for_now(one) for one in scores.values)


def completed(first: Scores, second: Scores) -> Scores:
    """What came first, and what came second in the place of what was missing for now.

    A batch is asked for as a whole both times, because a reward may depend on all of it; a score
    that is there stands.
    """
    rows = [
        (theirs if _is_for_now(ours[0]) else ours)
        for ours, theirs in zip(_rows(first), _rows(second), strict=True)
    ]
    return Scores(first.name, [score for score, _ in rows], [detail for _, detail in rows])


def pause_seconds(round: int, deadline: float) -> float:
    """How long to wait before asking for the `round`-th time again (from 0): longer each time, and
    never longer than the deadline of an answer."""
    return min(_FIRST_PAUSE * 4.0 ** min(round, 16), _LONGEST_PAUSE, deadline)


def _is_for_now(score: Score) -> bool:
    return isinstance(score, Missing) and score.retryable


def _rows(scores: Scores) -> list[tuple[Score, Mapping[str, Any]]]:
    details = scores.details or [{}] * len(scores.values)
    return list(zip(scores.values, details, strict=True))
