"""Regular expressions of the user's."""

from __future__ import annotations

import math

import regex

# The compiler writes a{1000} out a thousand times, and each of those again for (a{1000}){1000}.
_MOST_REPEATS = 100_000
_REPEAT = regex.compile(r"\{(\d+)")


def pattern_problem(pattern: str) -> str | None:
    """Why a text cannot be used as a regular expression; None if it can."""
    counts = [max(int(digits[:9]), 1) for digits in _REPEAT.findall(pattern)]
    if (repeats := math.prod(counts)) > _MOST_REPEATS:
        return f"its counts multiply to {repeats:.3g}, and {_MOST_REPEATS} is the most"
    try:
        regex.compile(pattern)
    except RecursionError:
        return "its groups are nested too deeply"
    except Exception as error:  # the compiler raises more than its own error: OverflowError, ...
        return f"is no regular expression: {error}"
    return None
