"""What a judge is asked about a picture: all at once, or part by part (Atelier's words)."""

from __future__ import annotations

from collections.abc import Iterable

from atelier.mmmg.graphs import KnowledgeGraph
from atelier.mmmg.predicates import parse

# What a picture must show of a dependency between a and b.
_SHOWN = {
    "Defines": "{a} illustrates or explains what {b} is",
    "Contains": "{b} is visibly a part of {a}, or inside it",
    "Requires": "that {a} needs or uses {b} can be seen",
    "Entails": "that {a} leads to {b} or involves it can be seen",
    "Causes": "that {a} brings {b} about can be seen, for example by an arrow from {a} to {b}",
    "TemporalOrder": "that {a} comes before {b} can be seen, by order, flow or numbering",
}
_BY_NAME = {name.lower(): text for name, text in _SHOWN.items()}
_ANSWER = "Answer yes or no."

_TEXT = """\
You see a picture that is meant to teach something. First describe it, then check it against a list.

1. Description
Describe everything that the picture shows: every object, label, number, arrow, colour and place,
and how they are arranged. Be complete, and say what is illegible or unclear.

2. Verdicts
Below are elements, and dependencies between elements. For each of them say yes or no. Yes means
that the picture itself shows it explicitly, clearly and unambiguously, correctly as to the facts,
and legibly. Everything else is no: what you could only infer, what you know from elsewhere, what is
cut off, garbled, misspelt or wrong. When in doubt, no.

What a picture must show of a dependency:
{shown}
Change(x) is a change of x: it must be seen that x changes.

Elements:
{elements}

Dependencies:
{dependencies}

What the dependencies mean here:
{annotation}

Form of the answer: the description under the heading "Description", then under the heading
"Verdicts" one line for each element and each dependency, copied word for word as above:
- element: yes
- dependency: no, with a brief reason
Leave none out, and write nothing after the last one."""


def request_text(known: KnowledgeGraph, annotation: str = "") -> str:
    """The text beside the picture.

    Args:
        annotation: explains the dependencies; may be empty.
    """
    shown = (f"- {name}(a, b): {text.format(a='a', b='b')}." for name, text in _SHOWN.items())
    return _TEXT.format(
        shown="\n".join(shown),
        elements=_listed(known.elements),
        dependencies=_listed(known.dependencies),
        annotation=annotation.strip() or "(nothing more is said)",
    )


def part_question(key: str, is_dependency: bool) -> str:
    """A yes-or-no question about one element or dependency. An element is a name, whatever it looks
    like: "f(x)", or "red circle (round)".

    Raises:
        MalformedPredicate: a dependency is none.
    """
    predicate = parse(key) if is_dependency else None
    text = None if predicate is None else _BY_NAME.get(predicate.relation)
    if predicate is None or text is None:
        return f"Does this image show, clearly and explicitly: {_line(key)}? {_ANSWER}"
    said = text.format(a=_line(predicate.source), b=_line(predicate.target))
    return f"Is it so in this image: {said}? {_ANSWER}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _listed(keys: Iterable[str]) -> str:
    """Each on a line of its own: a line break in one would be a line that nobody asked about."""
    lines = dict.fromkeys(" ".join(key.split()) for key in keys)
    return "\n".join(f"- {line}" for line in lines) or "- (none)"
