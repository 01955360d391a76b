"""Tables of scores over tiers and disciplines, as the leaderboard has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atelier.mmmg.benchmark import DISCIPLINES, TIERS

Sample = tuple[str, str, float | None]  # tier, discipline, and a score in [0, 1]


@dataclass(frozen=True)
class Mean:
    """The mean of n scores, None of none; `missing` could not be had."""

    mean: float | None
    n: int
    missing: int


@dataclass(frozen=True)
class Table:
    """Means in [0, 1]; tiers and disciplines in the benchmark's order, others behind them.

    Attributes:
        cells: by tier and discipline.
        micro: of all samples alike.
    """

    cells: Mapping[tuple[str, str], Mean]
    tiers: Mapping[str, Mean]
    disciplines: Mapping[str, Mean]
    micro: Mean

    @property
    def macro(self) -> float | None:
        """The unweighted mean of the tiers' means, of those that have one."""
        means = [one.mean for one in self.tiers.values() if one.mean is not None]
        return sum(means) / len(means) if means else None

    @property
    def leaderboard(self) -> float | None:
        """What is published as Avg: 100 times the macro mean."""
        return None if self.macro is None else 100 * self.macro


def table(samples: Iterable[Sample]) -> Table:
    """The means of samples; a missing score, None, enters none and is counted."""
    rows = list(samples)
    tiers = _ordered(TIERS, (tier for tier, _, _ in rows))
    disciplines = _ordered(DISCIPLINES, (one for _, one, _ in rows))
    cells = {
        (tier, one): [s for t, d, s in rows if (t, d) == (tier, one)]
        for tier in tiers
        for one in disciplines
    }
    return Table(
        {cell: _mean(own) for cell, own in cells.items() if own},
        {tier: _mean([s for t, _, s in rows if t == tier]) for tier in tiers},
        {one: _mean([s for _, d, s in rows if d == one]) for one in disciplines},
        _mean([score for _, _, score in rows]),
    )


def _ordered(known: tuple[str, ...], names: Iterable[str]) -> list[str]:
    """The different names, known ones first and in their order."""
    found = dict.fromkeys(names)
    return [*(one for one in known if one in found), *(one for one in found if one not in known)]


def _mean(scores: list[float | None]) -> Mean:
    there = [one for one in scores if one is not None]
    mean = sum(there) / len(there) if there else None
    return Mean(mean, len(there), len(scores) - len(there))
