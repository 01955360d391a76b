"""GenEval metadata: JSON lines of {tag, include, exclude?, prompt}. Source: MM-GRPO."""

from pathlib import Path
from typing import Any

from atelier.data.prompts import Prompt
from atelier.data.readers.problems import Problems, did_you_mean, json_lines
from atelier.legible import legible_value

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
RELATIONS = ("left of", "right of", "above", "below")
CLAUSE_KEYS = {"include": ("class", "count", "color", "position"), "exclude": ("class", "count")}


def read(path: Path) -> list[Prompt]:
    """One prompt a line, with metadata {"tag", "include", "exclude"} and any further keys.

    Raises:
        DataError: not a text file; or lines that are no JSON object of this schema, all reported
            with line number and key.
    """
    problems = Problems(path)
    prompts: list[Prompt] = []
    for where, row in json_lines(path, problems):
        if not isinstance(row, dict):
            problems.add(where, f"expected a JSON object, found {_kind(row)}")
            continue
        _check_row(problems, where, row)
        text = row.pop("prompt", None)
        metadata = {"exclude": [], **row}
        prompts.append(Prompt(len(prompts), 0, text if isinstance(text, str) else "", metadata))
    problems.raise_if_any()
    return prompts


def _check_row(problems: Problems, where: str, row: dict[str, Any]) -> None:
    text, tag, include = row.get("prompt"), row.get("tag"), row.get("include")
    if not isinstance(text, str) or not text.strip():
        problems.add(where, f"key 'prompt': a non-empty text, not {legible_value(text)}")
    if tag not in TAGS:
        problems.add(
            where, f"key 'tag': {legible_value(tag)} is unknown{did_you_mean(str(tag), TAGS)}"
        )
    if not isinstance(include, list) or not include:
        problems.add(where, f"key 'include': a non-empty list, not {legible_value(include)}")
    if not isinstance(row.get("exclude", []), list):
        problems.add(where, f"key 'exclude': a list, not {legible_value(row['exclude'])}")
    for name in ("include", "exclude"):
        clauses = row.get(name)
        for index, clause in enumerate(clauses if isinstance(clauses, list) else []):
            _check_clause(problems, f"{where}: {name}[{index}]", name, clause, index)


def _check_clause(problems: Problems, where: str, name: str, clause: Any, index: int) -> None:
    if not isinstance(clause, dict):
        problems.add(where, f"expected an object, found {_kind(clause)}")
        return
    for unknown in clause.keys() - set(CLAUSE_KEYS[name]):
        problems.add(
            where, f"unknown key {legible_value(unknown)}{did_you_mean(unknown, CLAUSE_KEYS[name])}"
        )
    if not isinstance(clause.get("class"), str) or not clause["class"]:
        problems.add(where, f"key 'class': a class name, not {legible_value(clause.get('class'))}")
    if not _is_count(clause.get("count")):
        problems.add(
            where, f"key 'count': a whole number from 1, not {legible_value(clause.get('count'))}"
        )
    if "color" in clause and (not isinstance(clause["color"], str) or not clause["color"]):
        problems.add(where, f"key 'color': a colour name, not {legible_value(clause['color'])}")
    if "position" in clause and not _is_position(clause["position"], index):
        problems.add(
            where,
            f"key 'position': [one of {', '.join(RELATIONS)}; the index of an earlier include "
            f"clause], not {legible_value(clause['position'])}",
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_position(value: Any, clause: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and value[0] in RELATIONS
        and isinstance(value[1], int)
        and not isinstance(value[1], bool)
        and 0 <= value[1] < clause
    )


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else repr(value)
