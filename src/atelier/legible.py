"""What others say, as something that may stand in a log or file: their words are not to trust."""

from __future__ import annotations

import html
import json
import math
import numbers
import re
import reprlib
import traceback
from collections.abc import Container, Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

LONGEST_COMPLETION = 8000  # characters of what a policy writes before an image
_LONGEST = 1000
_LONGEST_JSON = 8000
_MOST_ITEMS, _DEEPEST = 20, 4
_PIECE = 8  # characters of a secret that are cut out wherever they stand
_CUT = "[token]"


def legible(text: str, secret: str | None = None, longest: int = _LONGEST) -> str:
    """One line of at most so many printable characters, with `secret` cut out.

    A newline could forge a line of the log, an escape sequence could rewrite the terminal, and a
    service may echo the header that bears the token.
    """
    text = without_secret(text, secret)
    seen = text[: 10 * longest]  # of a text of megabytes the rest is not worth the time
    printable = "".join(char if char.isprintable() else " " for char in seen)
    line = " ".join(printable.split())
    whole = len(line) <= longest and len(seen) == len(text)
    return line if whole else f"{line[:longest]}..."


def metric_word(name: str) -> str:
    """A name as a part of a metric's: "PhD Math" is phd_math. Letters of any script stay, or names
    of another one would all be the same."""
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_") or "_"


def alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Different names that would be one as a part of a metric's, so that one mean would be of both:
    each that is like an earlier one behind that one, every name once."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(metric_word(name), name), name) for name in dict.fromkeys(names)]
    return [(one, other) for one, other in pairs if one != other]


def without_secret(text: str, secret: str | None) -> str:
    """The text without a secret: whole, escaped as JSON, Python or an address does, or any piece
    of eight characters, since an error may quote the beginning of it only."""
    if not secret:
        return text
    for form in _escaped(secret):
        text = text.replace(form, _CUT)
    pieces = {secret[at : at + _PIECE] for at in range(len(secret) - _PIECE + 1)}
    if not any(piece in text for piece in pieces):
        return text
    kept, at = [], 0
    while at < len(text):
        end = _end_of_pieces(text, at, pieces)
        kept.append(text[at] if end == at else _CUT)
        at = max(end, at + 1)
    return "".join(kept)


def without_secret_json(value: Any, secret: str | None) -> Any:
    """A JSON value with `without_secret` of every text and key in it."""
    if isinstance(value, str):
        return without_secret(value, secret)
    if isinstance(value, Mapping):
        return {
            without_secret(key, secret): without_secret_json(one, secret)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [without_secret_json(one, secret) for one in value]
    return value


def _escaped(secret: str) -> list[str]:
    """Ways to write a secret, the longest first, because a longer one may hold a shorter."""
    once = {
        secret,
        repr(secret)[1:-1],
        repr(secret + "'\"")[1:-4],  # in quotes of either kind, as a longer text would put it
        json.dumps(secret)[1:-1],
        quote(secret, safe=""),
        quote_plus(secret),
        html.escape(secret),
    }
    twice = {json.dumps(one)[1:-1] for one in once} | {repr(one)[1:-1] for one in once}
    return sorted(once | twice, key=len, reverse=True)


def _end_of_pieces(text: str, at: int, pieces: Container[str]) -> int:
    """Where the run of pieces that begins at `at` ends; `at` where none begins there."""
    end = at
    while text[at : at + _PIECE] in pieces:
        end = at + _PIECE
        at += 1
    return end


def legible_value(value: Any, secret: str | None = None) -> str:
    """The beginning of any value's text; its kind where it has none."""
    try:
        return legible(reprlib.repr(value), secret)
    except Exception:  # __repr__ is anybody's code; and a number of 5000 digits has no text
        return f"<{type(value).__name__}>"


def legible_error(error: BaseException) -> str:
    """Kind and text of an exception."""
    try:
        text = str(error)
    except Exception:  # __str__ is anybody's code
        text = "(its text cannot be had)"
    return legible(f"{type(error).__name__}: {text}")


def legible_traceback(error: BaseException) -> str:
    """Where an error comes from, for a log: its end, in lines of printable characters.

    The text of an error may be megabytes, or no Unicode at all.
    """
    text = "".join(traceback.format_exception(error))[-_LONGEST_JSON:]
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text).rstrip()


def legible_json(value: Any, secret: str | None = None) -> Any:
    """Anything as a JSON value of legible texts and finite numbers, bounded in its whole.

    Of a list or mapping the first items are kept, of what is nested deeper the beginning of its
    text, and so of a value that is too long as a whole.
    """
    found = _legible_json(value, secret, _DEEPEST)
    text = json.dumps(found, ensure_ascii=False)
    return found if len(text) <= _LONGEST_JSON else f"{text[:_LONGEST]}..."


def _legible_json(value: Any, secret: str | None, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Real):
        return plain_number(value)
    if isinstance(value, str):
        return legible(value, secret)
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:_MOST_ITEMS]
        return {_key(k, secret): _legible_json(v, secret, depth - 1) for k, v in items}
    if depth and isinstance(value, (list, tuple)):
        return [_legible_json(item, secret, depth - 1) for item in value[:_MOST_ITEMS]]
    return legible_value(value, secret)


def _key(key: Any, secret: str | None) -> str:
    return legible(key, secret) if isinstance(key, str) else legible_value(key, secret)


def plain_number(value: numbers.Real) -> int | float | str:
    """A number as JSON has it, or its name."""
    if isinstance(value, numbers.Integral) and abs(int(value)) < 2**63:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return "a number too large"
    return number if math.isfinite(number) else repr(number)
