"""Pictures inside Parquet files that change while they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from atelier.data.parquet_pictures import count_rows, is_inside, picture_bytes, rows_of_file
from atelier.errors import DataError


def write(path: Path, letter: bytes, rows: int = 20) -> None:
    """Files of the same rows have the same size."""
    pictures = [{"bytes": letter * 3000, "path": "x"} for _ in range(rows)]
    parquet.write_table(
        pyarrow.table({"image": pictures}),
        path,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        row_group_size=10,
    )


def test_a_file_that_is_cut_short_meanwhile_ends_no_process(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    write(file, b"A", 2000)
    rows = rows_of_file(file, ["image"])
    next(rows)
    assert picture_bytes(file / "3") == b"A" * 3000
    os.truncate(file, 5000)
    with pytest.raises(DataError, match="of its 2000 rows could be read: it was cut short"):
        list(rows)
    with pytest.raises(OSError, match="damaged"):
        picture_bytes(file / "1999")
    with pytest.raises(DataError):
        count_rows(file)


def test_a_file_in_the_place_of_another_is_read(tmp_path: Path) -> None:
    """Of the same size and time of its last change."""
    file, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write(file, b"A")
    before = file.stat()
    assert picture_bytes(file / "3")[:1] == b"A"
    write(other, b"B")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    assert file.stat().st_size == before.st_size
    assert picture_bytes(file / "3")[:1] == b"B"


@pytest.mark.parametrize("row", ["9" * 5000, "\u0663", "-1", "x"])
def test_what_is_no_row_is_no_picture(tmp_path: Path, row: str) -> None:
    write(tmp_path / "a.parquet", b"A")
    path = tmp_path / "a.parquet" / row
    assert not is_inside(path)
    with pytest.raises(FileNotFoundError, match=r"is no row of a Parquet file"):
        picture_bytes(path)
