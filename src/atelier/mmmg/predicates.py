"""Dependencies of a knowledge graph as MMMG writes them: "Causes(Change(cell wall), sun)".

Read exactly as the published scorer reads them, oddities included. Source: the Qwen vision GRPO
guide.
"""

from __future__ import annotations

from dataclasses import dataclass

from atelier.errors import DataError
from atelier.legible import legible_value

RELATIONS = ("Defines", "Contains", "Requires", "Entails", "Causes", "TemporalOrder")
_CHANGE = "change("


@dataclass(frozen=True)
class Predicate:
    """`relation`, `source` and `target` in lower case, arguments without their Change()."""

    relation: str
    source: str
    target: str


class MalformedPredicate(DataError):
    """A dependency that the published scorer would crash on."""

    def __init__(self, sample: str, text: str, reason: str) -> None:
        self.reason = f"dependency {legible_value(text)}: {reason}"
        super().__init__(f"{sample}: {self.reason}")


def parse(text: str, sample: str = "knowledge graph") -> Predicate | None:
    """A dependency; None where it has no "(", which the published rules pass over.

    Arguments are parted at the first ", ", so a name that holds one is read wrongly; a final ")"
    may lack.

    Args:
        sample: whose it is, for messages.

    Raises:
        MalformedPredicate: not two arguments with ", " between them.
    """
    relation, bracket, rest = text.partition("(")
    if not bracket:
        return None
    source, comma, target = rest.strip().removesuffix(")").partition(", ")
    if not comma:
        raise MalformedPredicate(
            sample, text, "two arguments with ', ' between them are wanted, as in Causes(sun, rain)"
        )
    names = [_unwrapped(one.strip().lower()) for one in (source, target)]
    if not all(names):
        raise MalformedPredicate(sample, text, "an argument is empty")
    return Predicate(relation.strip().lower(), *names)


def _unwrapped(argument: str) -> str:
    """An argument without Change(): what changes is the thing itself."""
    if not argument.startswith(_CHANGE):
        return argument
    return argument.removeprefix(_CHANGE).removesuffix(")").strip()
