"""What pydantic found wrong, in the words of the person who wrote the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from atelier.config.keys import nearest, section_hint, suggestion
from atelier.config.secret_names import without_secrets
from atelier.config.theirs import value_hint
from atelier.config.yaml_files import KeyPath, Origin

NO_SECTION = "must be a section: a mapping of keys, {} when empty"
_MEANING = {
    "model_type": NO_SECTION,
    "missing": "must be set",
    "finite_number": "must be a finite number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text (quote it)",
    "list_type": "must be a list, such as [a, b]",
    "tuple_type": "must be a list, such as [a, b]",
}
_FUNCTION = "must be a dotted module, a colon and a name in it, such as my_rewards:score"
_FORMS = {"function": _FUNCTION, "detector": _FUNCTION}
_LONGEST_VALUE = 60
_QUOTED = re.compile(r"'([^']*)'")


def describe(error: ValidationError, origins: Mapping[KeyPath, Origin]) -> list[str]:
    """One line a problem, in the order of files and lines: `origin: key: what is wrong`.

    Fields that exclude each other are one error in pydantic and a line each here.
    """
    found = [
        (_origin(path, origins), text)
        for detail in error.errors(include_url=False)
        for path, text in _lines(detail)
    ]
    found.sort(key=lambda pair: (pair[0].source, pair[0].line or 0) if pair[0] else ("", 0))
    return [_told(origin, text) for origin, text in found]


def _told(origin: Origin | None, text: str) -> str:
    """A line with where it was written, which of --set names the key already."""
    if origin is None:
        return text
    key = origin.source.removeprefix("--set ") if origin.source.startswith("--set ") else ""
    return f"{origin}: {text.removeprefix(f'{key}: ') if key else text}"


def has_conflicts(error: ValidationError) -> bool:
    """True when every single value is fine, but not all of them together."""
    return any(detail["type"] == "conflict" for detail in error.errors(include_url=False))


def _lines(detail: ErrorDetails) -> Iterator[tuple[KeyPath, str]]:
    if detail["type"] == "conflict":
        for key, text in detail["ctx"]["conflicts"]:
            yield tuple(key.split(".")), f"{key}: {text}"
        return
    path = detail["loc"]
    key = ".".join(str(part) for part in path) or "config"
    if detail["type"] == "extra_forbidden":
        yield path, f"{key}: unknown key{_hint(path, detail['input'])}"
    elif detail["type"] == "missing":  # the input is the section around it
        yield path, f"{key}: {_meaning(detail)}"
    else:
        hint = value_hint(key, detail["input"]) or _choice_hint(detail)
        yield path, f"{key}: {_value(path, detail['input'])} {_meaning(detail)}{hint}"


def _hint(path: KeyPath, value: Any) -> str:
    last = str(path[-1])
    if "." in last:
        return "; in a file a dotted key is written as nested sections"
    if last == "inherits":
        return "; only a recipe inherits: choose one with `recipe: NAME` or --recipe"
    key = ".".join(str(part) for part in path)
    return section_hint(key, value) or suggestion(key)


def _choice_hint(detail: ErrorDetails) -> str:
    """`; did you mean ...?` where one of several texts was misspelt."""
    if detail["type"] != "literal_error" or not isinstance(detail["input"], str):
        return ""
    close = nearest(detail["input"], _QUOTED.findall(detail["ctx"]["expected"]))
    return f"; did you mean {close}?" if close else ""


def _meaning(detail: ErrorDetails) -> str:
    meaning = _MEANING.get(detail["type"])
    if detail["type"] == "string_pattern_mismatch":
        meaning = _FORMS.get(str(detail["loc"][-1]), "must be a name: a-z, 0-9 and _")
    if meaning is None:
        words = detail["msg"].removeprefix("Value error, ")  # pydantic's name of a check of ours
        meaning = words.replace("Input should be", "must be", 1)
    return meaning if meaning.startswith("must") else f"is not valid: {meaning}"


def _value(path: KeyPath, value: Any) -> str:
    shown = without_secrets(value, str(path[-1]) if path else "")
    text = json.dumps(shown, ensure_ascii=False, default=str)
    text = "".join(one if one.isprintable() else "?" for one in text)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _origin(path: KeyPath, origins: Mapping[KeyPath, Origin]) -> Origin | None:
    """Where the key, or else the section around it, was written."""
    for length in range(len(path), -1, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return None
