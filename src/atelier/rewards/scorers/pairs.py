"""Comparisons of pairs as pure functions: who is compared with whom, and who wins how often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True)
class Pair:
    """Two images, by their places in the batch, in the order in which they are shown."""

    first: int
    second: int


@dataclass(frozen=True)
class Tally:
    """An image's comparisons: how many were asked for and answered, and its share of wins among
    those answered (a tie is half a win); None where none was. A pair that was asked about in both
    orders is answered where both were: one alone would count the judge's liking for a place."""

    asked: int
    answered: int
    win_rate: float | None

    @property
    def answered_share(self) -> float:
        return self.answered / self.asked if self.asked else 0.0


def pairs_of(group_ids: Sequence[int], both_orders: bool) -> list[Pair]:
    """Every pair within each group; in both orders, one behind the other, where that is wanted."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(group_ids):
        members.setdefault(group, []).append(index)
    return [
        pair
        for group in members.values()
        for one, other in combinations(group, 2)
        for pair in ([Pair(one, other), Pair(other, one)] if both_orders else [Pair(one, other)])
    ]


def compared(first: float | None, second: float | None) -> float | None:
    """How far the first of a pair wins by its mark: 1, 0, a half where the marks are equal; None
    where either has none."""
    if first is None or second is None:
        return None
    return 0.5 if first == second else float(first > second)


def tallies(count: int, outcomes: Iterable[tuple[Pair, float | None]]) -> list[Tally]:
    """The tally of each of `count` images.

    Args:
        outcomes: how far the first of the pair won: 1, 0, a half for a tie; None: no answer.
    """
    known = list(outcomes)
    lacking = {frozenset({one.first, one.second}) for one, won in known if won is None}
    asked, answered, wins = np.zeros(count, int), np.zeros(count, int), np.zeros(count)
    for pair, first_won in known:
        both = [pair.first, pair.second]
        asked[both] += 1
        if first_won is not None and frozenset(both) not in lacking:
            answered[both] += 1
            wins[both] += first_won, 1 - first_won
    rates = [float(won / n) if n else None for won, n in zip(wins, answered, strict=True)]
    return [Tally(*one) for one in zip(asked.tolist(), answered.tolist(), rates, strict=True)]
