"""What is known of the published benchmark: its tiers, disciplines and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

# Tier -> samples of the published test file, from easy to hard.
SAMPLES_OF_TIER = {
    "preschool": 591,
    "primaryschool": 680,
    "secondaryschool": 693,
    "highschool": 936,
    "undergraduate": 744,
    "PhD": 812,
}
SAMPLES_OF_DISCIPLINE = {
    "Biology": 850,
    "Chemistry": 328,
    "Economics": 623,
    "Engineering": 582,
    "Geography": 352,
    "History": 327,
    "Literature": 306,
    "Math": 399,
    "Philosophy": 210,
    "Sociology": 479,
}
TIERS, DISCIPLINES = tuple(SAMPLES_OF_TIER), tuple(SAMPLES_OF_DISCIPLINE)
SAMPLES = sum(SAMPLES_OF_TIER.values())
ABSENT = ("preschool", "Philosophy")
CELLS = tuple((tier, one) for tier in TIERS for one in DISCIPLINES if (tier, one) != ABSENT)


def differences(cells: Iterable[tuple[str, str]]) -> list[str]:
    """How samples differ from the published ones, in words; empty for the whole benchmark.

    Args:
        cells: tier and discipline of each sample.
    """
    found = list(cells)
    tiers, disciplines = (Counter(cell[place] for cell in found) for place in (0, 1))
    told = []
    if (len(found), len({*found})) != (SAMPLES, len(CELLS)):
        told.append(
            f"{len(found)} samples in {len({*found})} cells, published: {SAMPLES} in {len(CELLS)}"
        )
    for counts, published in ((tiers, SAMPLES_OF_TIER), (disciplines, SAMPLES_OF_DISCIPLINE)):
        told += [
            f"{name}: {counts[name]} samples, published: {count}"
            for name, count in published.items()
            if counts[name] != count
        ]
    return told
