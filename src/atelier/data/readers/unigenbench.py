"""UniGenBench prompts: CSV with a JSON column of test points. Source: spec/deepgen.md 6.1.

Upstream names its columns `index, prompt_en, sub_dims_en` (or `_zh`); DeepGen-RL's copies name them
`index, prompt, sub_dims`. Both are read.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from atelier.data.prompts import Prompt
from atelier.data.readers.problems import NotJson, Problems, parse_json, read_text
from atelier.errors import DataError
from atelier.legible import legible_value

SUFFIXES = ("_en", "_zh", "")
# Language: names of the test points and of their descriptions within the JSON.
POINT_KEYS = {"en": ("Testpoints", "Testpoint Description"), "zh": ("考点", "考点对应描述")}

Row = dict[str, str]


def read(path: Path) -> list[Prompt]:
    """One prompt a row; prompt_id is the column `index` where there is one.

    Metadata: "language", "testpoints" and "descriptions" (lists of equal length) and "sub_dims"
    (the whole JSON).

    Raises:
        DataError: not CSV, other columns; or bad rows, all reported with line number and index.
    """
    problems = Problems(path)
    prompts: list[Prompt] = []
    used: set[int] = set()
    for line, row, suffix in _rows(path, problems):
        where = f"line {line}" + (f" (index {row['index']})" if row.get("index") else "")
        prompt_id = _prompt_id(problems, where, row, len(prompts), used)
        text = row[f"prompt{suffix}"].strip()
        if not text:
            problems.add(where, f"column prompt{suffix}: the prompt is empty")
        points = _test_points(problems, f"{where}: column sub_dims{suffix}", row, suffix)
        if points is not None:
            prompts.append(Prompt(prompt_id, 0, text, points))
    problems.raise_if_any()
    if not prompts:
        raise DataError(f"{path}: no rows below the header")
    return prompts


def _rows(path: Path, problems: Problems) -> Iterator[tuple[int, Row, str]]:
    """Complete rows with the line they begin on and the suffix of the file's columns."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        suffix = _suffix(path, header)
        line = reader.line_num + 1
        for cells in reader:
            if len(cells) == len(header):
                yield line, dict(zip(header, cells, strict=True)), suffix
            elif cells:
                problems.add(f"line {line}", f"{len(cells)} cells, but {len(header)} columns")
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: not CSV ({error})") from error


def _suffix(path: Path, header: list[str]) -> str:
    for suffix in SUFFIXES:
        if {f"prompt{suffix}", f"sub_dims{suffix}"} <= set(header):
            return suffix
    wanted = " or ".join(f"prompt{suffix}, sub_dims{suffix}" for suffix in SUFFIXES)
    raise DataError(f"{path}: line 1: columns {wanted} expected, found {', '.join(header)}")


def _prompt_id(problems: Problems, where: str, row: Row, position: int, used: set[int]) -> int:
    if "index" not in row:
        return position
    text = row["index"].strip()
    if not text.isdecimal() or len(text) > 9:
        problems.add(where, f"column index: a whole number, not {legible_value(text)}")
        return position
    if int(text) in used:
        problems.add(where, "column index: stands twice")
    used.add(int(text))
    return int(text)


def _test_points(problems: Problems, where: str, row: Row, suffix: str) -> dict[str, Any] | None:
    try:
        sub_dims = parse_json(row[f"sub_dims{suffix}"])
    except NotJson as error:
        at = f" at character {error.column}" if error.column else ""
        problems.add(where, f"not JSON: {error}{at}")
        return None
    for language, (points_key, descriptions_key) in POINT_KEYS.items():
        if not isinstance(sub_dims, dict) or points_key not in sub_dims:
            continue
        points, descriptions = sub_dims[points_key], sub_dims.get(descriptions_key)
        if not (_are_texts(points) and _are_texts(descriptions)):
            problems.add(where, f"{points_key!r} and {descriptions_key!r} must be lists of texts")
            return None
        if len(points) != len(descriptions):
            problems.add(where, f"{len(points)} test points, but {len(descriptions)} descriptions")
            return None
        return {
            "language": language,
            "testpoints": points,
            "descriptions": descriptions,
            "sub_dims": sub_dims,
        }
    known = " or ".join(repr(points_key) for points_key, _ in POINT_KEYS.values())
    problems.add(where, f"a JSON object with {known} expected")
    return None


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
