"""The dotted keys of the schema, and which of them a mistaken key was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from atelier.config.reward_names import reward_hint
from atelier.config.schema import RunConfig
from atelier.config.theirs import key_hint

NAME = "NAME"


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section a field holds (also as `Section | None`), or None for a plain value."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def holds_named(annotation: Any) -> bool:
    """Whether a field holds sections by names of the user's, such as `judges`."""
    return get_origin(annotation) is dict and section_of(annotation) is not None


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field of the schema with its dotted key, a section before what it holds.

    A name of the user's is NAME in it.
    """
    for name, info in model.model_fields.items():
        yield prefix + name, info
        section = section_of(info.annotation)
        if section is not None:
            named = f"{NAME}." if holds_named(info.annotation) else ""
            yield from fields(section, f"{prefix}{name}.{named}")


@cache
def known_keys() -> frozenset[str]:
    """Every dotted key a run can set."""
    return frozenset(key for key, _ in fields(RunConfig)) - {"recipe"}


@cache
def _named_sections() -> frozenset[str]:
    return frozenset(key for key, info in fields(RunConfig) if holds_named(info.annotation))


def schema_key(key: str) -> str:
    """A dotted key as the schema has it: with NAME for a name of the user's."""
    words = key.split(".")
    for place in range(1, len(words)):
        if ".".join(words[:place]) in _named_sections():
            words[place] = NAME
    return ".".join(words)


def is_section(key: str) -> bool:
    """Whether a dotted key names a section and not a value."""
    key = schema_key(key)
    return any(known.startswith(f"{key}.") for known in known_keys())


def suggestion(key: str) -> str:
    """`; did you mean ...?` for an unknown dotted key, or what its section does hold."""
    parent, _, leaf = key.rpartition(".")
    leaves = {known.rpartition(".")[2] for known in known_keys()}
    if theirs := key_hint(key, is_ours=leaf in leaves):
        return theirs
    siblings = [k for k in known_keys() if k.rpartition(".")[0] == schema_key(f"{parent}.x")[:-2]]
    if parent == "rewards" and leaf not in leaves:
        return reward_hint(leaf, sorted(known.rpartition(".")[2] for known in siblings))
    close = nearest(leaf, [known.rpartition(".")[2] for known in siblings])
    if close is not None:
        return f"; did you mean {f'{parent}.{close}' if parent else close}?"
    close = leaf if leaf in leaves else nearest(leaf, sorted(leaves))
    if close is not None:
        elsewhere = sorted(k for k in known_keys() if k.rpartition(".")[2] == close)
        return f"; did you mean {' or '.join(elsewhere[:3])}?"
    names = sorted(known.rpartition(".")[2] for known in siblings)
    return f"; {parent or 'the configuration'} holds {', '.join(names)}" if names else ""


def section_hint(key: str, value: Any) -> str:
    """`; did you mean ...?` for an unknown section that holds one key, where a section inside of
    another is called so and has that key; else nothing."""
    while isinstance(value, dict) and len(value) == 1:
        ((name, value),) = value.items()
        key = f"{key}.{name}"
    ours = sorted(known for known in known_keys() if known.endswith(f".{key}"))
    return f"; did you mean {' or '.join(ours[:3])}?" if ours and "." in key else ""


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The one of `words` that `word` is probably a misspelling of."""
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.5)
    return close[0] if close else None
