"""Lists in texts, as JSON or as Python writes them: both are found in replies and in files."""

from __future__ import annotations

import ast
import json
from typing import Any

LONGEST = 100_000  # characters


def read_list(text: str) -> list[Any] | None:
    """The list that a text is; None where it is none, or is longer than LONGEST."""
    if len(text) > LONGEST:
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, list) else None
    return None
