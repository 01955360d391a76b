"""GenEval's scores as pure functions of what was detected in an image.

Three scores are in use, and they are not the same thing:

- soft, what Flow-GRPO trains on: the mean of a term a demand; it falls with every object too few or
  too many, and may be below 0.
- strict: every clause of `include` holds, with exactly as many objects as it says.
- official, what papers report: as strict, but more objects than a clause says do no harm unless an
  `exclude` clause forbids them. Soft and strict ignore `exclude`.

The soft score's oddities are kept, because published curves are made with it: a wrong position
costs half of what it could, and a clause with the wrong count gets one 0 for colour and position.

The position rule is that of the benchmark (Ghosh et al. 2023, arXiv 2310.11513).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What the detector must be sure of. Counting asks for more: its prompts are about false positives.
MIN_CONFIDENCE, MIN_CONFIDENCE_COUNTING = 0.3, 0.9
MOST_OBJECTS = 16  # of a class; there is no other suppression of doubles
POSITION_MARGIN = 0.1  # of both objects' extents: so far apart centres count as level

Clause = Mapping[str, Any]


@dataclass(frozen=True)
class Detection:
    """An object found: its class, box (left, top, right, bottom; y grows downwards), confidence in
    [0, 1] and colour name, None where no prompt asks for it."""

    name: str
    box: tuple[float, float, float, float]
    confidence: float = 1.0
    colour: str | None = None


@dataclass(frozen=True)
class GenevalScore:
    """soft in (-inf, 1], the other two yes or no."""

    soft: float
    strict: bool
    official: bool


Objects = Mapping[str, Sequence[Detection]]


def score(detections: Iterable[Detection], metadata: Mapping[str, Any]) -> GenevalScore:
    """All three scores of an image. `metadata` is a GenEval line: tag, include, exclude."""
    objects = confident(detections, metadata["tag"])
    include = metadata["include"]
    soft, strict = soft_and_strict(objects, include)
    return GenevalScore(soft, strict, official(objects, include, metadata.get("exclude", ())))


def confident(detections: Iterable[Detection], tag: str) -> dict[str, list[Detection]]:
    """What counts as found: of every class the surest, at most MOST_OBJECTS of them."""
    least = MIN_CONFIDENCE_COUNTING if tag == "counting" else MIN_CONFIDENCE
    objects: dict[str, list[Detection]] = {}
    for one in sorted(detections, key=lambda one: -one.confidence):
        if one.confidence > least:
            objects.setdefault(one.name, []).append(one)
    return {name: found[:MOST_OBJECTS] for name, found in objects.items()}


def soft_and_strict(objects: Objects, include: Sequence[Clause]) -> tuple[float, bool]:
    """The mean of all terms, and whether every clause holds exactly."""
    terms: list[float] = []
    held: list[Sequence[Detection] | None] = []
    for clause in include:
        found = objects.get(clause["class"], ())
        own, holds = _exact(clause, found, held)
        terms += own
        held.append(found if holds else None)
    return sum(terms) / len(terms), None not in held


def official(objects: Objects, include: Sequence[Clause], exclude: Iterable[Clause]) -> bool:
    """Whether the image shows what was asked for, and nothing that was excluded."""
    held: list[Sequence[Detection] | None] = []
    for clause in include:
        count = clause["count"]
        found = objects.get(clause["class"], ())[:count]
        holds = (
            len(found) == count
            and _coloured(clause, found) == count
            and ("position" not in clause or _placed(clause, found, held))
        )
        held.append(found if holds else None)
    forbidden = any(len(objects.get(one["class"], ())) >= one["count"] for one in exclude)
    return None not in held and not forbidden


def relations(first: Detection, second: Detection) -> set[str]:
    """Where `first` lies, seen from `second`: none, one, or two on a diagonal.

    Per axis the centres' distance counts less POSITION_MARGIN of both extents; a relation holds
    where more than half of the whole distance is left.
    """
    offsets, extents = [], []
    for low, high in ((0, 2), (1, 3)):
        offsets.append((first.box[low] + first.box[high] - second.box[low] - second.box[high]) / 2)
        extents.append(
            abs(first.box[high] - first.box[low]) + abs(second.box[high] - second.box[low])
        )
    distance = math.hypot(*offsets)
    found = set()
    for offset, extent, (before, behind) in zip(
        offsets, extents, (("left of", "right of"), ("above", "below")), strict=True
    ):
        if abs(offset) - POSITION_MARGIN * extent > 0.5 * distance:
            found.add(before if offset < 0 else behind)
    return found


def _exact(
    clause: Clause, found: Sequence[Detection], held: Sequence[Sequence[Detection] | None]
) -> tuple[list[float], bool]:
    """The terms of a clause, and whether it holds. `held`: the objects of the clauses before it,
    None where one does not hold."""
    count = clause["count"]
    terms = [_closeness(count, len(found))]
    if len(found) != count:
        return terms + [0.0] * ("color" in clause or "position" in clause), False
    if "color" in clause:
        coloured = _coloured(clause, found)
        terms.append(_closeness(count, coloured))
        if coloured != count:
            return terms, False
    if "position" not in clause:
        return terms, True
    if _target(clause, held) is None:
        return [*terms, 0.0], False
    placed = _placed(clause, found, held)
    return [*terms, 1.0] if placed else [*terms, 0.0, 1.0], placed


def _closeness(wanted: int, found: int) -> float:
    return 1 - abs(wanted - found) / wanted


def _coloured(clause: Clause, found: Sequence[Detection]) -> int:
    """How many have the colour that is asked for; all where none is."""
    return sum("color" not in clause or one.colour == clause["color"] for one in found)


def _placed(
    clause: Clause, found: Sequence[Detection], held: Sequence[Sequence[Detection] | None]
) -> bool:
    """Whether every object lies as asked for, seen from every object of the clause's target."""
    relation, target = clause["position"][0], _target(clause, held)
    return target is not None and all(
        relation in relations(one, other) for one in found for other in target
    )


def _target(
    clause: Clause, held: Sequence[Sequence[Detection] | None]
) -> Sequence[Detection] | None:
    """The objects that a position refers to, None where their clause does not hold."""
    index = clause["position"][1]
    if not 0 <= index < len(held):
        raise ValueError(f"a position refers to an earlier clause, not to include[{index}]")
    return held[index]
