"""Shares of test points: of each dimension, and over all, by two conventions.

OVERALL pools all points (micro: points count alike, so frequent dimensions count more); MACRO is
the unweighted mean of the primary dimensions' shares. A primary pools the points of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from atelier.unigenbench.taxonomy import DIMENSIONS, PRIMARIES, dimension_of

OVERALL, MACRO = "overall", "macro"
Verdict = tuple[str, float]  # name of a test point, and what of it is shown, in [0, 1]


@dataclass(frozen=True)
class Tally:
    """How many test points were judged, and how many of them are shown; of several measurements
    the mean, so `shown` need not be whole."""

    shown: float
    judged: int

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.shown + other.shown, self.judged + other.judged)

    @property
    def share(self) -> float:
        return self.shown / self.judged


# What a score is of -> by part, of whose shares it is the unweighted mean.
Tallies = Mapping[str, Mapping[str, Tally]]


def names() -> Iterator[str]:
    """What there are scores of: OVERALL, MACRO, each primary dimension with its parts behind it."""
    yield OVERALL
    yield MACRO
    for primary in PRIMARIES:
        yield primary
        yield from (one.en for one in DIMENSIONS if one.primary == primary and not one.is_alone)


def tallies(verdicts: Iterable[Verdict]) -> Tallies:
    """The tallies of judged test points, of whatever has any.

    Raises:
        UnknownPoint: a name is not in the taxonomy.
    """
    found: dict[str, dict[str, Tally]] = {}
    for name, shown in verdicts:
        dimension, one = dimension_of(name), Tally(shown, 1)
        parts = {OVERALL: "", MACRO: dimension.primary, dimension.primary: "", dimension.en: ""}
        for whole, part in parts.items():
            own = found.setdefault(whole, {})
            own[part] = own[part] + one if part in own else one
    return found


def score(parts: Mapping[str, Tally]) -> float:
    """The mean of the parts' shares."""
    return sum(one.share for one in parts.values()) / len(parts)
