"""What others say, as something that may stand in a log or file: their words are not to trust."""

from __future__ import annotations

import json
import math
import numbers
import reprlib
from collections.abc import Mapping
from typing import Any

_LONGEST = 1000
_LONGEST_JSON = 8000
_MOST_ITEMS, _DEEPEST = 20, 4


def legible(text: str, secret: str | None = None) -> str:
    """One bounded line of printable characters, with `secret` cut out.

    A newline could forge a line of the log, an escape sequence could rewrite the terminal, and a
    service may echo the header that bears the token.
    """
    if secret:
        text = text.replace(secret, "[token]")
    printable = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(printable.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


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
        return _number(value)
    if isinstance(value, str):
        return legible(value, secret)
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:_MOST_ITEMS]
        return {legible(str(k), secret): _legible_json(v, secret, depth - 1) for k, v in items}
    if depth and isinstance(value, (list, tuple)):
        return [_legible_json(item, secret, depth - 1) for item in value[:_MOST_ITEMS]]
    return legible(reprlib.repr(value), secret)


def _number(value: numbers.Real) -> int | float | str:
    if isinstance(value, numbers.Integral) and abs(int(value)) < 2**63:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return "a number too large"
    return number if math.isfinite(number) else repr(number)
