"""UniGenBench prompts: CSV with a JSON column of test points. Source: DeepGen-RL.

Upstream names its columns `index, prompt_en, sub_dims_en` (or `_zh`); DeepGen-RL's copies name them
`index, prompt, sub_dims`. Both are read, in either language.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

from atelier.data.prompts import Prompt
from atelier.data.readers.csv_rows import Row, csv_rows
from atelier.data.readers.problems import NotJson, Problems, parse_json
from atelier.errors import DataError
from atelier.legible import legible_value
from atelier.unigenbench.taxonomy import UnknownPoint, dimension_of

SUFFIXES = ("_en", "_zh", "")
# Language: names of the test points and of their descriptions within the JSON.
POINT_KEYS = {"en": ("Testpoints", "Testpoint Description"), "zh": ("考点", "考点对应描述")}


def read(path: Path) -> list[Prompt]:
    """One prompt a row; prompt_id is the column `index` where there is one.

    Metadata: "language", "testpoints" and "descriptions" (lists of equal length) and "sub_dims"
    (the whole JSON).

    Raises:
        DataError: not CSV, other columns; or malformed rows, a test point that is not in the
            taxonomy among them, all reported with line number and index.
    """
    prompts, problems = _read(path)
    problems.raise_if_any()
    if not prompts:
        raise DataError(f"{path}: no rows below the header")
    return prompts


def read_sound(path: Path) -> tuple[list[Prompt], list[str]]:
    """The prompts of the rows that are not malformed, and what is wrong with the others.

    Raises:
        DataError: not CSV, other columns, or no row is left.
    """
    prompts, problems = _read(path)
    if not prompts:
        wrong = "".join(f"; {one}" for one in problems.found[:1])
        raise DataError(f"{path}: no row below the header can be used{wrong}")
    return prompts, [f"{path}: {one}" for one in problems.found]


def _read(path: Path) -> tuple[list[Prompt], Problems]:
    problems = Problems(path)
    prompts: list[Prompt] = []
    used: set[int] = set()
    header, rows = csv_rows(path, problems)
    suffix = _suffix(path, header)
    for line, row in rows:
        before = len(problems.found)
        where = f"line {line}" + (f" (index {row['index']})" if row.get("index") else "")
        prompt_id = _prompt_id(problems, where, row, len(prompts), used)
        text = row[f"prompt{suffix}"].strip()
        if not text:
            problems.add(where, f"column prompt{suffix}: the prompt is empty")
        points = _test_points(problems, f"{where}: column sub_dims{suffix}", row, suffix)
        if points is not None and len(problems.found) == before:
            prompts.append(Prompt(prompt_id, 0, text, points))
    return prompts, problems


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
        _require_known(problems, where, points)
        return {
            "language": language,
            "testpoints": points,
            "descriptions": descriptions,
            "sub_dims": sub_dims,
        }
    known = " or ".join(repr(points_key) for points_key, _ in POINT_KEYS.values())
    problems.add(where, f"a JSON object with {known} expected")
    return None


def _require_known(problems: Problems, where: str, points: list[str]) -> None:
    for name in points:
        try:
            dimension_of(name)
        except UnknownPoint as error:
            problems.add(where, str(error))


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
