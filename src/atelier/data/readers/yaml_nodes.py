"""YAML files as nodes that know their lines, checked key by key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from atelier.config.paths import is_file
from atelier.data.readers.problems import Problems, did_you_mean, read_text
from atelier.errors import DataError


def compose(path: Path) -> yaml.Node:
    """The node of a whole file.

    Raises:
        DataError: not a text file, not YAML (line named), or nothing in it.
    """
    text = read_text(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise DataError(f"{path}: {line}not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise DataError(f"{path}: not YAML: {error}") from error
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply") from error
    if node is None:
        raise DataError(f"{path}: holds nothing but comments")
    return node


def mapping(
    problems: Problems,
    node: yaml.Node,
    where: str,
    known: Collection[str],
    elsewhere: Mapping[str, str] | None = None,
) -> dict[str, yaml.Node]:
    """The values of a mapping by key; what is wrong with it is noted.

    Args:
        where: what it is, for messages.
        known: the keys that it may have.
        elsewhere: unknown keys of which more is known than what they are near to: where they
            belong.
    """
    if not isinstance(node, yaml.MappingNode):
        problems.add(line_of(node), f"{where}: a mapping with {', '.join(known)} expected")
        return {}
    entries: dict[str, yaml.Node] = {}
    for key_node, value in node.value:
        # A list as a key may hold itself twice, and again: its text would have no end.
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else f"a {key_node.id}"
        if key not in known:
            belongs = (elsewhere or {}).get(key)
            hint = f"; it belongs to {belongs}" if belongs else did_you_mean(key, known)
            problems.add(line_of(key_node), f"{where}: unknown key {key!r}{hint}")
        elif key in entries:
            problems.add(line_of(key_node), f"{where}: key {key!r} stands twice")
        entries[key] = value
    return entries


def items(problems: Problems, node: yaml.Node | None, where: str) -> list[yaml.Node]:
    """The nodes of a non-empty list; none where (noted) it is not one."""
    if isinstance(node, yaml.SequenceNode) and node.value:
        return list(node.value)
    line = "line 1" if node is None else line_of(node)
    problems.add(line, f"{where}: a non-empty list expected")
    return []


def scalar(problems: Problems, node: yaml.Node | None, where: str, kind: type) -> Any:
    """A non-empty text or a number; None where there is none or (noted) it is not one."""
    if node is None:
        return None
    text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
    if kind is str and text and _is_text(text):
        return text
    try:
        if kind is float and text:
            return float(text)
    except ValueError:
        pass
    expected = "a number" if kind is float else "a text"
    problems.add(line_of(node), f"{where}: {expected} expected, not {text or 'nothing'!r}")
    return None


def _is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: a YAML escape can make half a character."""
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def file_of(problems: Problems, node: yaml.Node | None, where: str, folder: Path) -> Path:
    """The file that a text names, relative to `folder`; noted where it is not there."""
    file = folder / (scalar(problems, node, where, str) or "")
    if node is not None and not is_file(file):
        problems.add(line_of(node), f"{where}: no such file {file}")
    return file


def line_of(node: yaml.Node) -> str:
    """Such as "line 3"."""
    return f"line {node.start_mark.line + 1}"
