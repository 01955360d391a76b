"""Reading what a judge said: pure, and closed on failure.

A judge's text is not ours to trust: whatever is ambiguous, cut off, out of range or of another
type is a failure with its reason, because a wrong number would look like a judgement. Nothing
here raises on any text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from atelier.judge.replies import Failure, Parsed, Reply, excerpt
from atelier.tags import tagged

Model = TypeVar("Model", bound=BaseModel)
Verdict = Literal[1, 2, "tie"]

_COMPLETE = frozenset({None, "", "stop", "eos_token", "stop_sequence"})
_MOST_DIGITS = 30
# A judge caught in a loop says the same until its tokens end; reading all of it would hold up the
# other questions for seconds to hours.
_MOST_TIMES = 100
_LARGEST = 1e300  # so that a mean of some is finite, too


def unfinished(reply: Reply) -> Failure | None:
    """The failure of a reply that is refused, cut off or empty; None for one to be read."""
    if reply.refusal:
        return Failure(f"the judge refused: {excerpt(reply.refusal)}", reply)
    if reply.finish_reason == "length":
        return Failure("cut off at the token limit (finish_reason length)", reply)
    if reply.finish_reason not in _COMPLETE:
        return Failure(f"not finished (finish_reason {excerpt(reply.finish_reason or '')})", reply)
    if not reply.text.strip():
        return Failure("an empty answer", reply)
    if reply.text.lstrip().startswith("<think>") and "</think>" not in reply.text:
        return Failure("thoughts without an answer", reply)
    return None


def _spoken(text: str) -> str:
    """Without the thoughts that some endpoints leave before the answer."""
    if text.lstrip().startswith("{"):
        return text
    return text.rpartition("</think>")[2]


def read_text(reply: Reply) -> Parsed[str] | Failure:
    """The whole answer, without white space around it."""
    if failure := unfinished(reply):
        return failure
    text = _spoken(reply.text).strip()
    return Parsed(text, reply) if text else Failure("thoughts without an answer", reply)


# JSON --------------------------------------------------------------------------------------------


class _NotJson(ValueError):
    """Why a text is no JSON that can be taken."""


def read_json(reply: Reply, model: type[Model]) -> Parsed[Model] | Failure:
    """The one JSON object in the text, bare, fenced or among words, checked against a model.

    Types are strict, as the model's JSON schema has them: "4" and true are no numbers.
    """
    if failure := unfinished(reply):
        return failure
    try:
        found = _only_object(_spoken(reply.text).strip().lstrip("\ufeff"))
        # As JSON, not as Python: strict reading then takes a list for a tuple, text for an enum.
        value = model.model_validate_json(json.dumps(found), strict=True)
        if _truth_became_number(found, value.model_dump(mode="json", by_alias=True)):
            raise _NotJson("true or false where a number is wanted")
    except ValidationError as error:
        return Failure(_first_problem(error), reply, repairable=True)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, _NotJson) else "JSON that does not parse"
        return Failure(reason, reply, repairable=True)
    return Parsed(value, reply)


def _only_object(text: str) -> dict[str, Any]:
    """The object in a text.

    Raises:
        ValueError: there is none, or two that differ, or something that is half of one.
    """
    found: list[dict[str, Any]] = []
    position = 0
    while (start := text.find("{", position)) >= 0:
        between = text[position:start]
        _require_no_brace(between)
        # A failure ends the search: an object inside a broken one is not the answer.
        value, end = _DECODER.raw_decode(text, start)
        if between.rstrip().endswith("["):
            raise _NotJson("an array where an object is wanted")
        found.append(value)
        if len(found) > _MOST_TIMES:
            raise _NotJson(f"more than {_MOST_TIMES} JSON objects")
        position = end
    _require_no_brace(text[position:])
    if not found:
        raise _NotJson("no JSON object")
    if any(not _same(found[0], other) for other in found[1:]):
        raise _NotJson("two JSON objects that differ")
    return found[0]


def _require_no_brace(between: str) -> None:
    if "}" in between:
        raise _NotJson("JSON that does not parse: a brace too many")


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, where 1 is neither true nor 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _truth_became_number(said: Any, read: Any) -> bool:
    """Whether a model took true for 1 or false for 0, as literals of numbers do even if strict."""
    if isinstance(said, dict) and isinstance(read, dict):
        return any(_truth_became_number(said[key], read[key]) for key in said.keys() & read.keys())
    if isinstance(said, list) and isinstance(read, list):
        return any(_truth_became_number(*pair) for pair in zip(said, read, strict=False))
    return isinstance(said, bool) and type(read) in (int, float)


def _without_contradiction(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made and not _same(made[key], value):
            raise _NotJson(f"the key {excerpt(key)!r} twice, with different values")
        made[key] = value
    return made


def _finite(digits: str) -> float:
    value = float(digits)
    if not abs(value) <= _LARGEST:
        raise _NotJson("a number that is not finite, or as good as")
    return value


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise _NotJson("a number of too many digits")
    return int(digits)


def _no_constant(name: str) -> float:
    raise _NotJson(f"{name}, which is no number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_without_contradiction,
    parse_float=_finite,
    parse_int=_whole,
    parse_constant=_no_constant,
)


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the object"
    return f"{excerpt(where)}: {first['msg']}"


# Numbers with a label ----------------------------------------------------------------------------

_EMPHASIS = "*_`"
_MARKS = r"[*_`\"'\s]*"  # around a label or a number
_COLON = "[:\uff1a\ufe55\ua789]"
_SCALE = r"\(\s*(?P<low>[0-9.]+)\s*(?:-|\u2013|to)\s*(?P<high>[0-9.]+)\s*\)"
_NUMBER = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+))"
    r"(?:[ \t*_`]*(?:/|out[ \t]+of\b)[ \t*_`]*(?P<of>[0-9]+(?:\.[0-9]+)?))?"
    r"(?P<after>[^\n]*)"
)
# What follows a number and makes it another one: digits, a fraction, a range, a sum, a unit.
_GOES_ON = re.compile(
    r"[^\s.,;:!?)\]\"'<]"
    r"|[.,;:]+[^\s*_`.\"')<]"
    r"|[!?)\]\"']+[0-9]"
    r"|[ \t]*[-\u2013\u2014~/%.,\u2030+=\u00d7\u2192>*^]{1,3}[ \t]*[0-9%]"
    r"|[ \t]*[%\u2030/]"
    r"|,?[ \t]+(?:to|or|and|out|through|percent|per)\b"
    r"|[ \t]+[0-9\u00bc-\u00be\u2150-\u215e]",
    re.IGNORECASE,
)


def read_number(reply: Reply, label: str, low: float, high: float) -> Parsed[float] | Failure:
    """The number after `label` and a colon, such as "**Final Score:** 4.5" or "4.5/5".

    Args:
        label: any case; its words may be apart by any white space.
        low: least value, and the scale's lower end where the text names a scale.
        high: greatest value, likewise; "8/10" is a failure where it is not 10.
    """
    if failure := unfinished(reply):
        return failure
    found = _labelled(_spoken(reply.text), label, low, high)
    if isinstance(found, str):
        return Failure(found, reply, repairable=True)
    return Parsed(found, reply)


def read_dimensions(
    reply: Reply, labels: Sequence[str], low: float, high: float
) -> Parsed[dict[str, float]] | Failure:
    """A number for each of several labels, such as "Alignment Score (1-5): 4"; all or none."""
    if failure := unfinished(reply):
        return failure
    values: dict[str, float] = {}
    for label in labels:
        found = _labelled(_spoken(reply.text), label, low, high)
        if isinstance(found, str):
            return Failure(found, reply, repairable=True)
        values[label] = found
    return Parsed(values, reply)


def _labelled(text: str, label: str, low: float, high: float) -> float | str:
    """The number after a label, or why there is none."""
    words = r"[\s_]+".join(re.escape(word) for word in label.split())
    pattern = re.compile(
        rf"(?<![^\W_])(?<!-){words}{_MARKS}(?:{_SCALE}{_MARKS})?{_COLON}(?P<gap>{_MARKS})",
        re.IGNORECASE,
    )
    values: list[float] = []
    for match in pattern.finditer(text):
        stated = (match["low"], match["high"])
        if stated != (None, None) and not _is_scale(stated, low, high):
            return f"{label}: on a scale of {excerpt(' to '.join(stated))}, not {low:g} to {high:g}"
        value = _number_after(match, label, low, high)
        if isinstance(value, str):
            return value
        values.append(value)
        if len(values) > _MOST_TIMES:
            return f"{label}: said more than {_MOST_TIMES} times"
    if not values:
        return f'no "{label}:" with a number'
    if len({*values}) > 1:
        return f"{label}: {values[0]:g} and {values[1]:g} contradict each other"
    return values[0]


def _number_after(label_match: re.Match[str], label: str, low: float, high: float) -> float | str:
    """The number that follows a label, read whole, or what is wrong with it."""
    match = _NUMBER.match(label_match.string, label_match.end())
    if match is None:
        return f"{label}: no number after it"
    after = match["after"].lstrip(_EMPHASIS)
    # On a line of its own a number stands alone: "1. The colours" there begins a list.
    in_a_list = "\n" in label_match["gap"] and after.strip(" \t\r." + _EMPHASIS)
    if _GOES_ON.match(after) or in_a_list:
        return f"{label}: no plain number: {excerpt(match[0])}"
    if match["of"] is not None and float(match["of"]) != high:
        return f"{label}: out of {excerpt(match['of'])}, not of {high:g}"
    value = float(match["number"])
    if not low <= value <= high:
        return f"{label}: {excerpt(match['number'])} is outside {low:g} to {high:g}"
    return value


def _is_scale(stated: tuple[str, str], low: float, high: float) -> bool:
    try:
        return (float(stated[0]), float(stated[1])) == (low, high)
    except ValueError:  # such as 1.2.3
        return False


# Which of two images -----------------------------------------------------------------------------

_BETTER = re.compile(r"\bimage\s+([12])\s+is\s+better\b", re.IGNORECASE)
_TIE = re.compile(
    r"\b(?:a tie|tied|equally (?:good|bad|well|poor|strong|weak|matched)|(?:are|is) equal"
    r"|of equal quality|neither (?:image )?is better|cannot (?:be decided|decide)|undecided"
    r"|unclear(?= which|\W*$))\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"\b(?:not|no|nor|neither|cannot|false|wrong)\b|n['\u2019]t\b", re.IGNORECASE)


def read_verdict(reply: Reply) -> Parsed[Verdict] | Failure:
    """1 or 2: which image "is better", in the words between answer tags; or that neither is, where
    the judge says so there."""
    if failure := unfinished(reply):
        return failure
    contents = tagged(_spoken(reply.text), "answer")
    if not contents:
        return Failure("no <answer>...</answer>", reply, repairable=True)
    named: set[Verdict] = set()
    for content in contents:
        found = _verdicts(re.sub(r"[*_`]", "", content))
        if isinstance(found, str):
            return Failure(found, reply, repairable=True)
        named |= found
    if len(named) > 1:
        return Failure("verdicts that contradict each other", reply, repairable=True)
    return Parsed(named.pop(), reply)


def _verdicts(words: str) -> set[Verdict] | str:
    """What is said between two tags, or what is wrong with it."""
    better, tie = list(_BETTER.finditer(words)), _TIE.search(words)
    if better:
        start = better[-1].start()
    elif tie is not None:
        start = tie.start()
    else:
        return 'neither "Image 1 is better" nor 2'
    if _DENIAL.search(words[:start]):
        return "a verdict that is denied"
    named: set[Verdict] = {1 if match[1] == "1" else 2 for match in better}
    return named | {"tie"} if tie is not None else named
