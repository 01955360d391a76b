"""What a judge said of an image's test points, as a verdict of each.

Ways to write a list are many and all are read; what is in it is not guessed at. A list of verdicts
that is not as long as the points, or another order of them, would put verdicts on wrong points.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from atelier.legible import legible_value
from atelier.tags import tagged
from atelier.unigenbench.lists import read_list

_BRACKETS = {"[": "]", "\uff3b": "\uff3d", "\u3010": "\u3011", "(": ")", "\uff08": "\uff09"}
_COMMA = re.compile("[,\uff0c\u3001]")
_AROUND = " \t\r\n'\"`*\u201c\u201d"
_VERDICTS = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}


@dataclass(frozen=True)
class Verdicts:
    """1 or 0 of each test point, and what was said of each; `analysis` is empty where that could
    not be told apart."""

    scores: tuple[int, ...]
    analysis: tuple[str, ...] = ()


class Malformed(ValueError):
    """Why a reply is no list of verdicts."""


def read_verdicts(text: str, names: Sequence[str]) -> Verdicts:
    """The verdicts in a reply.

    Args:
        names: of the test points, in the order in which they were asked about.

    Raises:
        Malformed: no list of verdicts, several that differ, an entry that is neither 0 nor 1, a
            list of another length than the points', or of names in another order.
    """
    lists = {_scores(one) for one in tagged(text, "score")}
    if not lists:
        raise Malformed("no <score>...</score>")
    if len(lists) > 1:
        raise Malformed("several <score> lists that differ")
    (scores,) = lists
    _require_length("score", scores, names)
    analysis = _texts(text, "analysis")
    if analysis:
        _require_length("analysis", analysis, names)
    _require_order(_texts(text, "checkpoint"), names)
    return Verdicts(scores, analysis)


def _scores(content: str) -> tuple[int, ...]:
    bare = content.strip(_AROUND).removeprefix("json").strip(_AROUND)  # a fenced list
    if bare and _BRACKETS.get(bare[0]) == bare[-1]:
        bare = bare[1:-1]
    entries = _COMMA.split(bare.strip().rstrip(",\uff0c\u3001"))
    found = []
    for number, entry in enumerate(entries, start=1):
        verdict = _VERDICTS.get(entry.strip(_AROUND).casefold())
        if verdict is None:
            raise Malformed(f"score {number} is {legible_value(entry.strip())}, not 0 or 1")
        found.append(verdict)
    return tuple(found)


def _texts(text: str, tag: str) -> tuple[str, ...]:
    """The one list of texts under a tag; empty where there is none that can be read."""
    contents = tagged(text, tag)
    found = read_list(contents[0]) if len(contents) == 1 else None
    if found is None or not all(isinstance(one, str) for one in found):
        return ()
    return tuple(found)


def _require_length(what: str, entries: Sequence[object], names: Sequence[str]) -> None:
    if len(entries) != len(names):
        raise Malformed(f"{what}: {len(entries)} entries for {len(names)} test points")


def _require_order(told: Sequence[str], names: Sequence[str]) -> None:
    """A judge may word the names as it likes, but not shuffle them."""
    if told:
        _require_length("checkpoint", told, names)
    given, wanted = ([" ".join(one.split()).casefold() for one in each] for each in (told, names))
    if given != wanted and sorted(given) == sorted(wanted):
        raise Malformed("the test points are in another order")
