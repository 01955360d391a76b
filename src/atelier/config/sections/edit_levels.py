"""Levels of compound instructions: how many atomic edits one instruction is made of."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

MOST = 8
_PART = re.compile(r"([1-8])(?:-([1-8]))?")


def levels_of(text: str) -> tuple[int, ...]:
    """The levels that a text names, ascending, each once: "8", "1-8", "1,3,5", "1-3,8".

    Raises:
        ValueError: it names none, or a level that there is not.
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"must be levels from 1 to {MOST}, such as 8, 1-8 or 1,3,5")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"{part} counts down; write {last}-{first}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _as_text(value: Any) -> Any:
    """YAML reads `8` as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _checked(text: str) -> str:
    levels_of(text)
    return text


EditLevels = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked)]
