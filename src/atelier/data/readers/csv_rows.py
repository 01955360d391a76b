"""Rows of CSV files, by the names of their columns."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from atelier.data.readers.problems import Problems, read_text
from atelier.errors import DataError


def csv_rows(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, str]]]:
    """("line 3", row) of every complete row, by the line it begins on; the others are problems.

    Raises:
        DataError: not a text file, not CSV, a column without a name of its own, or no rows.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    found = 0
    try:
        header = [name.strip() for name in next(reader)]
        if "" in header or len({*header}) < len(header):
            raise DataError(f"{path}: line 1: every column needs a name of its own")
        line = reader.line_num + 1
        for cells in reader:
            if len(cells) == len(header):
                yield f"line {line}", dict(zip(header, cells, strict=True))
                found += 1
            elif cells:
                problems.add(f"line {line}", f"{len(cells)} cells, but {len(header)} columns")
                found += 1
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: not CSV ({error})") from error
    if not found:
        raise DataError(f"{path}: no rows below the header")
