"""Configuration YAML, read strictly and with the line of every key.

Smaller than YAML on purpose: scalars follow YAML 1.2 (`no` is a word, `1e-4` is a number, both of
which YAML 1.1 readers get wrong), a key that stands twice is an error, and anchors, aliases and
tags are refused, because recipes inherit instead.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from atelier.errors import ConfigError

KeyPath = tuple[str | int, ...]
Locate = Callable[[yaml.Node], "Origin"]

_TAG = "tag:yaml.org,2002:"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_SCALARS = {  # in the order in which they are tried
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (_FLOAT, list("-+.0123456789")),
}


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a file and line, or a command-line argument by its key (the value
    is told where it is the problem: it may be a secret)."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass
class Layer:
    """One source of values: nested mappings of words, and the origin of every key in them."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars; aliases are errors."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark if event is not None else None
        if getattr(event, "anchor", None) is not None:  # an alias carries its anchor's name
            raise yaml.composer.ComposerError(
                None, None, "anchors and aliases are not used here; let recipes inherit", mark
            )
        if isinstance(event, yaml.CollectionStartEvent) and event.tag is not None:
            raise yaml.composer.ComposerError(
                None, None, f"the tag {event.tag} is not used here", mark
            )
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either kind of YAML reader would not take for a word."""


_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1's
for _name, (_pattern, _first) in _SCALARS.items():
    _compiled = re.compile(f"^(?:{_pattern})$")
    _Loader.add_implicit_resolver(_TAG + _name, _compiled, _first)
    _Dumper.add_implicit_resolver(_TAG + _name, _compiled, _first)


def read_yaml(path: Path) -> Layer:
    """Read one mapping from a file. An empty file is an empty mapping.

    Raises ConfigError naming file and line: not readable, not UTF-8, not YAML, not a mapping,
    a key that stands twice or is not a word.
    """
    source = shown(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{source}:{line}: not UTF-8 text ({error.reason})") from error
    node = _compose(text, source)
    if node is None:
        return Layer()
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            f"{source}:{node.start_mark.line + 1}: expected sections (`key: value`), "
            f"found {_kind(node)}"
        )
    return _layer(node, (), lambda found: Origin(source, found.start_mark.line + 1))


def read_override(argument: str) -> Layer:
    """Read `dotted.key=value`, the value being YAML: `null`, `0.5`, `[0, 4]`, `{size: 2}`.

    Raises ConfigError naming the argument.
    """
    key, equals, text = argument.partition("=")
    origin = Origin(f"--set {key.strip()}")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"{origin}: expected dotted.key=value")
    node = _compose(text, str(origin))
    if node is None:
        raise ConfigError(f"{origin}: no value; write {key}=null for none, {key}='' for no text")
    prefix: KeyPath = tuple(parts)
    layer = _layer(node, prefix, lambda found: origin)
    for depth in range(len(prefix)):
        layer.origins[prefix[: depth + 1]] = origin
    return layer


def number(text: str, otherwise: Any) -> Any:
    """The number that a text is in a file (1_000 and digits of other scripts are none there), or
    what is to be had otherwise."""
    for kind, read in (("int", int), ("float", float)):
        with contextlib.suppress(ValueError):  # of 5000 digits
            if re.fullmatch(_SCALARS[kind][0], text):
                return read(text)
    return otherwise


def dump_yaml(value: Any) -> str:
    """YAML text that this reader and YAML 1.1 readers understand alike, keys in given order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96)


def shown(path: Path) -> str:
    """`path` as a user would type it: relative to the current directory where it lies below."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _compose(text: str, source: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f":{mark.line + 1}"
        problem = error.problem or error.context or "not YAML"
        if "'\\t'" in problem:
            problem = "a tab; indent with spaces"
        raise ConfigError(_not_yaml(source, line, problem)) from error
    except yaml.reader.ReaderError as error:
        line = f":{text[: error.position].count(chr(10)) + 1}"
        raise ConfigError(f"{_at(source, line)}: {error.reason}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply") from error


def _not_yaml(source: str, line: str, problem: str) -> str:
    if source.startswith("--set "):
        return f"{source}: the value is no YAML: {problem}; quote text: KEY='\"text\"'"
    return f"{source}{line}: {problem}"


def _at(source: str, line: str) -> str:
    return source if source.startswith("--set ") else source + line


def _layer(node: yaml.Node, prefix: KeyPath, locate: Locate) -> Layer:
    """The values under `node`, nested below the words of `prefix`."""
    layer = Layer()
    problems: list[str] = []
    value = _value(node, prefix, layer, problems, locate)
    if problems:
        raise ConfigError("\n".join(problems))
    for word in reversed(prefix):
        value = {word: value}
    layer.values = value
    return layer


def _value(
    node: yaml.Node, path: KeyPath, layer: Layer, problems: list[str], locate: Locate
) -> Any:
    layer.origins[path] = locate(node)
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for word, key, item in _pairs(node, problems, locate):
            result[word] = _value(item, (*path, word), layer, problems, locate)
            # A section is found at its key, not at the first line below it.
            layer.origins[(*path, word)] = locate(key)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [
            _value(item, (*path, index), layer, problems, locate)
            for index, item in enumerate(node.value)
        ]
    return _scalar(node, problems, locate)


def _pairs(
    node: yaml.MappingNode, problems: list[str], locate: Locate
) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    first: dict[str, Origin] = {}
    for key, item in node.value:
        origin = locate(key)
        if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str":
            found = key.value if isinstance(key, yaml.ScalarNode) else _kind(key)
            problems.append(f"{origin}: a key must be a word, not {found or 'nothing'}")
        elif key.value in first:
            problems.append(f"{origin}: {key.value} stands twice, first at {first[key.value]}")
        else:
            first[key.value] = origin
            yield key.value, key, item


def _scalar(node: yaml.Node, problems: list[str], locate: Locate) -> Any:
    text, kind = str(node.value), node.tag.removeprefix(_TAG)
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "int":
                return int(text)
            case "float":
                return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
            case "str":
                text.encode()  # half a character ("\\ud800") is no text
                return text
    except (ValueError, KeyError):
        problems.append(f"{locate(node)}: {text[:40]!r} cannot be read as {kind}")
        return None
    problems.append(f"{locate(node)}: the tag {node.tag} is not used here")
    return None


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.CollectionNode):
        return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
    return f"the text {node.value!r}"
