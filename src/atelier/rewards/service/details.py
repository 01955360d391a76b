"""What a scorer saw, as JSON that can be sent: it may be anything at all."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from atelier.legible import legible_value, plain_number

# Characters and entries of one image: a whole batch stays below the 64 MiB that a client takes.
_MOST = 32_768
_DEEPEST = 16
_MOST_BITS = 4096  # Python writes no integer of more than 4300 digits


def plain_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    """A detail as JSON; what JSON lacks is text. A cycle, or more than can be sent, is cut off.

    Texts stay as they are, line breaks too, because some are compared again; but halves of
    surrogate pairs, which no text can be sent with.
    """
    try:
        found: dict[str, Any] = _Plain().of(dict(detail), _DEEPEST)
    except Exception as error:  # a mapping of anybody's class: the scores stand all the same
        return {"seen": f"cannot be sent: {type(error).__name__}"}
    return found


class _Plain:
    """One detail on its way; `_left` is what may still be sent of it."""

    def __init__(self) -> None:
        self._left = _MOST

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, numbers.Integral):
            return self._integer(int(value))
        if isinstance(value, numbers.Real):
            return plain_number(value)
        if depth and isinstance(value, Mapping):
            return {
                self._key(key): self.of(one, depth - 1) for key, one in self._some(value.items())
            }
        if depth and isinstance(value, list | tuple):
            return [self.of(one, depth - 1) for one in self._some(value)]
        return self._text(legible_value(value))

    def _some(self, entries: Any) -> Iterator[Any]:
        for entry in entries:
            if self._left <= 0:
                return
            yield entry

    def _key(self, key: Any) -> str:
        return self._text(key if isinstance(key, str) else legible_value(key))

    def _integer(self, value: int) -> int | str:
        bits = value.bit_length()
        self._left -= bits // 3
        return value if bits <= _MOST_BITS else "a number too large"

    def _text(self, text: str) -> str:
        room = max(self._left, 0)
        self._left -= len(text)
        kept = text if len(text) <= room else f"{text[:room]}..."
        return kept.encode("utf-8", "replace").decode()
