"""Plain prompt files: .txt, .jsonl, .csv or .parquet.

Source: MM-GRPO (the .txt of PickScore, SFW, DrawBench), DeepGen-RL (all).
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from atelier.data.prompts import Prompt
from atelier.data.readers.csv_rows import csv_rows
from atelier.data.readers.problems import Problems, json_lines, lines, read_text
from atelier.errors import DataError

TEXT_KEYS = ("prompt", "caption")
Placed = tuple[str, Prompt]


def read(path: Path) -> list[Prompt]:
    """One prompt a line or row; of .jsonl, .csv and .parquet the key `prompt`, else `caption`.

    The other keys of a .jsonl object, and the other columns of a .csv, become metadata.

    Raises:
        DataError: another file type, or lines and rows that hold no prompt, all reported.
    """
    return [prompt for _, prompt in read_placed(path)]


def read_placed(path: Path) -> list[Placed]:
    """As `read`, each with its place in the file, such as "line 3"."""
    readers = {
        ".txt": _read_txt,
        ".jsonl": _read_jsonl,
        ".csv": _read_csv,
        ".parquet": _read_parquet,
    }
    if os.path.isdir(path):  # False for a name no file can have
        raise DataError(f"{path}: is a folder; name a file in it")
    if path.suffix not in readers:
        raise DataError(f"{path}: a prompt file is one of {', '.join(readers)}")
    return readers[path.suffix](path)


def _read_txt(path: Path) -> list[Placed]:
    found = enumerate(lines(read_text(path)))
    return [(f"line {number}", Prompt(i, 0, line)) for i, (number, line) in found]


def _read_jsonl(path: Path) -> list[Placed]:
    problems = Problems(path)
    return _from_rows(problems, json_lines(path, problems))


def _read_csv(path: Path) -> list[Placed]:
    problems = Problems(path)
    header, rows = csv_rows(path, problems)
    if not {*TEXT_KEYS} & {*header}:
        found = ", ".join(header)
        raise DataError(f"{path}: line 1: a column prompt or caption expected, found {found}")
    return _from_rows(problems, [(f"line {line}", row) for line, row in rows])


def _read_parquet(path: Path) -> list[Placed]:
    import pandas
    import pyarrow

    if not os.path.isfile(path):
        raise DataError(f"{path}: no such file")
    try:
        frame = pandas.read_parquet(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not a Parquet file, or a damaged one ({error})") from error
    keys = [key for key in TEXT_KEYS if key in frame.columns]
    if not keys or frame.empty:
        raise DataError(f"{path}: rows with a column prompt or caption expected")
    rows = enumerate(frame[keys].to_dict("records"))
    return _from_rows(Problems(path), ((f"row {index}", row) for index, row in rows))


def _from_rows(problems: Problems, rows: Iterable[tuple[str, Any]]) -> list[Placed]:
    found: list[Placed] = []
    for where, row in rows:
        key = next((key for key in TEXT_KEYS if isinstance(row, dict) and key in row), None)
        text = None if key is None else row[key]
        if not isinstance(text, str) or not text.strip():
            problems.add(where, "no text under the key prompt or caption")
            continue
        metadata = {name: value for name, value in row.items() if name not in TEXT_KEYS}
        found.append((where, Prompt(len(found), 0, text.strip(), metadata)))
    problems.raise_if_any()
    return found
