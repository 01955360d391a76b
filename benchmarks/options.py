"""Options of benchmarks, refused in words before anything is built or removed."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf
from typing import TypeVar

from atelier.errors import AtelierError

Number = TypeVar("Number", int, float)


def at_least(least: Number) -> Callable[[str], Number]:
    """For argparse: a number of the kind of `least` that is not below it."""
    kind = type(least)
    name = "a whole number" if kind is int else "a number"

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {name}") from None
        if not least <= value < inf:
            raise ArgumentTypeError(f"give {least} or more, not {text}")
        return value

    return read


def exit_code_of(work: Callable[[], int]) -> int:
    """What it returns; of an error that a user can meet, its text on stderr and its code."""
    try:
        return work()
    except AtelierError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
