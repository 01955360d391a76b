"""Which number would do where one does not divide, and how numbers are said."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """`1 micro-batch`, `2 micro-batches`."""
    ending = "" if number == 1 else "es" if what.endswith(("h", "s")) else "s"
    return f"{number} {what}{ending}"


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` next below and above `wanted`: `4 or 6`, or the one there is."""
    divisors = [one for one in range(1, number + 1) if number % one == 0]
    below = [one for one in divisors if one <= wanted][-1:]
    above = [one for one in divisors if one > wanted][:1]
    return " or ".join(map(str, below + above))


def nearest_multiples(number: int, wanted: int) -> str:
    """The multiples of `number` next below and above `wanted`: `6 or 12`."""
    below = wanted // number * number
    return " or ".join(str(one) for one in (below, below + number) if one)
