"""Pictures inside Parquet files, as Hugging Face's data sets have them: {bytes, path} in a column.

Such a picture has a path like a file's, whose folder is the Parquet file and whose name is the row:
`test_real-00000-of-00001.parquet/17`. So prompt tables name it as they name any picture, and who
has the Parquet file has it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from atelier.errors import DataError
from atelier.legible import legible

COLUMN = "image"
_KEPT_OPEN = 64  # files
_TOGETHER = 32  # rows that are decoded at once: a picture lies behind all before it in its group
_BUFFER = 1 << 20  # bytes read at once: a picture needs no more of its group than what is before it
_ROW = re.compile("[0-9]{1,18}")

_reading = threading.Lock()  # one reader of a file serves one thread at a time


def is_inside(path: Path) -> bool:
    """Whether a path means a row of a Parquet file."""
    return path.parent.suffix == ".parquet" and _ROW.fullmatch(path.name) is not None


def picture_bytes(path: Path) -> bytes:
    """The file that a row's picture is.

    Raises:
        OSError: the Parquet file is not there or damaged, or has no such picture.
    """
    if not is_inside(path):
        raise FileNotFoundError(f"{legible(str(path))} is no row of a Parquet file")
    file, row = path.parent, int(path.name)
    import pyarrow

    try:
        now = file.stat()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no such file {file}") from error
    try:
        with _reading:
            opened = _opened(file, _state_of(now))
            group, place = _place_of(opened, row)
            for batch in opened.iter_batches(_TOGETHER, row_groups=[group], columns=[COLUMN]):
                if place < len(batch):
                    return bytes_of(batch.column(COLUMN)[place].as_py(), path)
                place -= len(batch)
    except (pyarrow.ArrowException, KeyError, UnicodeDecodeError) as error:
        raise OSError(f"{file} is damaged, or has no pictures: {error}") from error
    raise OSError(f"{file} has no row {row}")


def _state_of(now: os.stat_result) -> tuple[int, ...]:
    """Another one where a file was changed, or has the place of another one of its size and age."""
    return now.st_dev, now.st_ino, now.st_ctime_ns, now.st_mtime_ns, now.st_size


@lru_cache(maxsize=_KEPT_OPEN)
def _opened(file: Path, _state: tuple[int, ...]) -> Any:
    """A file as it is now: its footer is read once, and not for every picture."""
    return _open(file)


def _open(file: Path) -> Any:
    """Never mapped into memory: of a file that is cut short meanwhile, a mapping ends the process.
    Nor read ahead: whole groups of pictures would be in memory."""
    from pyarrow.parquet import ParquetFile

    return ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)


def rows_of_file(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and values of every row, a few at a time in memory.

    Raises:
        DataError: not a Parquet file, or without one of the columns.
    """
    import pyarrow

    number = 0
    try:
        with _open(path) as opened:
            there = opened.schema_arrow.names
            if lacking := [name for name in columns if name not in there]:
                raise DataError(
                    f"{path}: no column {', '.join(lacking)} (it has {', '.join(there) or 'none'})"
                )
            for batch in opened.iter_batches(8, columns=list(columns)):
                for row in batch.to_pylist():
                    yield number, row
                    number += 1
            if number < (count := opened.metadata.num_rows):  # its reader ends without a word
                raise DataError(
                    f"{path}: {number} of its {count} rows could be read: it was cut short"
                )
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a Parquet file, or a damaged one ({error})") from error


def count_rows(path: Path) -> int:
    """How many rows a Parquet file has.

    Raises:
        DataError: not a Parquet file.
    """
    import pyarrow

    try:
        with _open(path) as opened:
            return int(opened.metadata.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file, or a damaged one ({error})") from error


def _place_of(opened: Any, row: int) -> tuple[int, int]:
    """The row group that a row is in, and its place there."""
    for group in range(opened.num_row_groups):
        count = opened.metadata.row_group(group).num_rows
        if row < count:
            return group, row
        row -= count
    raise OSError(f"it has {opened.metadata.num_rows} rows")


def bytes_of(value: Any, path: Path) -> bytes:
    """The picture in a cell of COLUMN.

    Raises:
        OSError: there is none.
    """
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes) or not content:
        raise OSError(f"{path}: no bytes of a picture")
    return content
