"""CSV files with a header, row by row, by the lines that rows begin on."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atelier.data.readers.problems import Problems, read_text
from atelier.errors import DataError

Row = dict[str, str]


def csv_rows(path: Path, problems: Problems) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The names of the columns; and every row of as many cells with the line it begins on, from 1.
    Rows of fewer or more are problems.

    Raises:
        DataError: no text file, or a column without a name of its own; or, while rows are read, it
            is not CSV (line named), or there are none.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise _not_csv(path, reader, error) from error
    if not header or "" in header or len({*header}) < len(header):
        raise DataError(f"{path}: line 1: every column needs a name of its own")
    return header, _rows(path, problems, reader, header)


def _rows(
    path: Path, problems: Problems, reader: Any, header: list[str]
) -> Iterator[tuple[int, Row]]:
    line, found = reader.line_num + 1, 0
    try:
        for cells in reader:
            found += bool(cells)
            if len(cells) == len(header):
                yield line, dict(zip(header, cells, strict=True))
            elif cells:
                problems.add(f"line {line}", f"{len(cells)} cells, but {len(header)} columns")
            line = reader.line_num + 1
    except csv.Error as error:
        raise _not_csv(path, reader, error) from error
    if not found:
        raise DataError(f"{path}: no rows below the header")


def _not_csv(path: Path, reader: Any, error: csv.Error) -> DataError:
    return DataError(f"{path}: line {reader.line_num}: not CSV ({error})")
