"""What enters a mean with one value, and is drawn anew as one by the bootstrap: prompt or pair.

Scores of test points are shares that are pooled over prompts (pooled.py): a prompt then counts by
how many points it has.

An evaluation's rows are images. A metric whose name has a slash ("gold_edited/add") is of a
part of the units only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from atelier.legible import metric_word
from atelier.unigenbench.tallies import MACRO, OVERALL, Tallies, Tally, score, tallies

Row = Mapping[str, Any]

# A column of scores -> what the means over the images of a pair are called.
PAIR_SCORES = {"judge": "judge", "strict": "gold"}
POINT_JUDGES = ("judge", "gold")  # who may have judged test points


@dataclass(frozen=True)
class Unit:
    """A value for every metric that could be had.

    Attributes:
        key: equal in two evaluations for the same prompt, or the same pair.
        stratum: units with one count by the unweighted mean of the strata's means.
        tallies: of metrics that are pooled shares: judged points by part.
    """

    key: tuple[Any, ...]
    values: Mapping[str, float]
    stratum: str | None = None
    tallies: Mapping[str, Mapping[str, Tally]] = field(default_factory=dict)


def units_of(rows: Sequence[Row], unit: str, metrics: Collection[str]) -> list[Unit]:
    """The units of the rows, in the order in which they come first.

    Args:
        unit: "prompt", "pair", "tiered prompt": a prompt whose tier is its stratum, or "pooled
            prompt": one whose test points are pooled with those of others.
        metrics: columns of the rows whose mean over the unit's images is a value of it; only over
            those that have one.
    """
    return _UNITS[unit](rows, metrics)


def part(metric: str, name: str) -> str:
    """What a metric is called of a part of the units, such as a category of prompts."""
    return f"{metric}/{metric_word(name)}"


def _by_prompt(rows: Sequence[Row], metrics: Collection[str]) -> list[Unit]:
    return [Unit(key, _means(own, metrics)) for key, own in _groups(rows).items()]


def _groups(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each prompt."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.get("dataset_id"), row["prompt_id"]), []).append(row)
    return groups


def _by_pair(rows: Sequence[Row], metrics: Collection[str]) -> list[Unit]:
    """Of a pair's scores the arithmetic and the geometric mean, where every image has one."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.get("dataset_id"), row["pair"]), []).append(row)
    return [
        Unit(key, _means(own, metrics) | _pair_means(own), own[0].get("category"))
        for key, own in groups.items()
    ]


def _by_tier(rows: Sequence[Row], metrics: Collection[str]) -> list[Unit]:
    tiers = {(row.get("dataset_id"), row["prompt_id"]): row.get("tier") for row in rows}
    return [Unit(one.key, one.values, tiers[one.key]) for one in _by_prompt(rows, metrics)]


def point_metric(who: str, name: str) -> str:
    """What the score of a dimension, OVERALL or MACRO is called as a metric."""
    if name == MACRO:
        return f"{who}_macro"
    whole = f"{who}_unigenbench"
    return whole if name == OVERALL else part(whole, name)


def tallies_of(rows: Iterable[Row], who: str) -> Tallies:
    """The tallies of the test points of images that have a verdict of each of theirs.

    Args:
        rows: with "points", a list of {"point", `who`}: its name, and 0 to 1 or None.
    """
    judged = [row["points"] for row in rows if is_judged(row, who)]
    return tallies((one["point"], one[who]) for points in judged for one in points)


def is_judged(row: Row, who: str) -> bool:
    """Whether all test points of an image have a verdict. Otherwise none of them counts."""
    return all(one[who] is not None for one in row["points"])


def _by_points(rows: Sequence[Row], metrics: Collection[str]) -> list[Unit]:
    found = []
    for key, own in _groups(rows).items():
        pooled = {
            point_metric(who, name): parts
            for who in POINT_JUDGES
            for name, parts in tallies_of(own, who).items()
        }
        shares = {name: score(parts) for name, parts in pooled.items()}
        found.append(Unit(key, _means(own, metrics) | shares, tallies=pooled))
    return found


_UNITS: dict[str, Callable[[Sequence[Row], Collection[str]], list[Unit]]] = {
    "prompt": _by_prompt,
    "pair": _by_pair,
    "tiered prompt": _by_tier,
    "pooled prompt": _by_points,
}


def _means(rows: Sequence[Row], metrics: Collection[str]) -> dict[str, float]:
    found = {}
    for metric in metrics:
        known = [float(row[metric]) for row in rows if row.get(metric) is not None]
        if known:
            found[metric] = sum(known) / len(known)
    return found


def _pair_means(rows: Sequence[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for column, who in PAIR_SCORES.items():
        scores = [row.get(column) for row in rows]
        known = [float(score) for score in scores if score is not None]
        if len(known) < len(rows):
            continue
        means = {
            f"{who}_arithmetic": sum(known) / len(known),
            f"{who}_geometric": prod(known) ** (1 / len(known)),
        }
        category = rows[0].get("category")
        parts = {part(name, category): value for name, value in means.items()} if category else {}
        found |= means | parts
    return found
