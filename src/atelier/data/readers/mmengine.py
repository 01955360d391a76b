"""MMEngine configurations of image data sets: Python files, read as literals and never run.

DeepGen-RL names the data of its auxiliary loss in one (spec/deepgen.md 4.6). It is not used as it
is: a Python file would have to be executed. What it says of data sets is read, so that a refusal
can show the YAML to write in its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.data.readers.problems import read_text
from atelier.errors import DataError

_LONGEST = 10_000  # characters of a path, and data sets of a list


@dataclass(frozen=True)
class ImageDataset:
    """A file of captions and images; $NAME in a path is a variable of the environment."""

    path: str
    image_folder: str | None
    sample_weight: float


class _Unknown:
    """What only running the file would tell."""


def read_datasets(path: Path) -> list[ImageDataset]:
    """The data sets that a configuration names by literals, in their order.

    Raises:
        DataError: not a Python file.
    """
    text = read_text(path)
    values: dict[str, Any] = {}
    try:
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                values[statement.targets[0].id] = _value(statement.value, values)
        return [_dataset(entry) for entry in _entries(values, set())]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{path}: not Python: {error or 'nested too deeply'}") from error


def refusal(path: Path) -> DataError:
    """Why such a file is not taken, with the YAML to write."""
    text = f"{path}: an MMEngine configuration is Python and is not run here; write YAML"
    datasets = read_datasets(path)
    if not datasets:
        return DataError(f"{text}: it names no data set by literals")
    return DataError(f"{text}, here of the data sets that it names:\n{as_yaml(datasets)}")


def as_yaml(datasets: list[ImageDataset]) -> str:
    """The list `datasets` of a YAML file."""
    lines = ["datasets:"]
    for one in datasets:
        lines += [f"  - name: {Path(one.path).stem}", f"    path: {one.path}"]
        if one.image_folder is not None:
            lines.append(f"    image_folder: {one.image_folder}")
        lines.append(f"    sample_weight: {one.sample_weight:g}")
    return "\n".join(lines)


def _entries(value: Any, seen: set[int]) -> Iterator[dict[Any, Any]]:
    """Every mapping within a value that names a file of data; one that stands in several places,
    under its own name and in a list, is one."""
    if not isinstance(value, dict | list) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict) and isinstance(value.get("data_path"), str):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        yield from _entries(one, seen)


def _dataset(entry: dict[Any, Any]) -> ImageDataset:
    folder, weight = entry.get("image_folder"), entry.get("sample_weight", 1.0)
    return ImageDataset(
        entry["data_path"],
        folder if isinstance(folder, str) else None,
        float(weight) if isinstance(weight, int | float) else 1.0,
    )


def _value(node: ast.expr, values: dict[str, Any]) -> Any:
    """A literal, or a name, sum or call of literals that these files are made of."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values.get(name, _Unknown())
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(one, values) for one in parts]
        case ast.Dict(keys=keys, values=parts):
            pairs = zip(keys, parts, strict=True)
            return {
                key.value: _value(one, values)
                for key, one in pairs
                if isinstance(key, ast.Constant)
            }
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            return {one.arg: _value(one.value, values) for one in keywords if one.arg}
        case ast.Call(
            func=ast.Attribute(attr="getenv" | "get"), args=[ast.Constant(value=str(name)), *_]
        ):
            return f"${name}"
        case ast.Subscript(
            value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))
        ):
            return f"${name}"
        case ast.Call(func=ast.Attribute(attr="join"), args=parts):
            return _joined([_value(one, values) for one in parts], "/")
        case ast.JoinedStr(values=parts):
            return _joined([_value(one, values) for one in parts])
        case ast.FormattedValue(value=value):
            return _value(value, values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _added(_value(left, values), _value(right, values))
    return _Unknown()


def _joined(parts: Sequence[Any], between: str = "") -> Any:
    texts = [one for one in parts if isinstance(one, str)]
    is_known = len(texts) == len(parts) and sum(map(len, texts)) <= _LONGEST
    return between.join(texts) if is_known else _Unknown()


def _added(left: Any, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list) and len(left + right) <= _LONGEST:
        return left + right
    return _joined([left, right])
