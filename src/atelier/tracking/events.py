"""Append-only JSON lines: the metrics and events of a run, readable with nothing but a pager.

Within one life of a trainer the files only grow. A checkpoint stores their lengths, and a resume
cuts them back to it, so a killed and resumed run leaves the same lines as an undisturbed
one, but for what measures the machine (time/, memory/) and what a life says of its own beginning
(the events resumed and replay_gate). Checkpoints are written in the background: the event of one
stands where it was whole, among those of the steps that were trained meanwhile.
"""

from __future__ import annotations

import errno
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atelier.errors import DataError


class JsonLines:
    """One JSON-lines file, opened for appending, by any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._one_by_one = threading.Lock()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and hand it to the operating system at once.

        Raises:
            OSError: it could not be written (a full disk); the file is as it was.
        """
        text = json.dumps(_finite(dict(record)), separators=(",", ":"), allow_nan=False)
        line = text.encode() + b"\n"
        with self._one_by_one:  # or cutting back would take another thread's line
            self._write(line)

    def _write(self, line: bytes) -> None:
        before = self._file.seek(0, os.SEEK_END)
        try:
            written = self._file.write(line)
            if written != len(line):  # what did not fit any more
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            self._file.truncate(before)
            raise

    def size(self) -> int:
        """Length of the file in bytes."""
        return self._file.seek(0, os.SEEK_END)

    def offset(self) -> int:
        """Length of the file in bytes, after forcing it to disk."""
        os.fsync(self._file.fileno())
        return self.size()

    def cut_back(self, offset: int) -> None:
        """Drop everything after `offset` bytes (what a killed life wrote after its checkpoint).

        Raises:
            DataError: the file is shorter; cutting would fill it up with NUL bytes.
        """
        size = self._file.seek(0, os.SEEK_END)
        if size < offset:
            raise DataError(
                f"{self.path}: holds {size} bytes, but its checkpoint was written when it held "
                f"{offset}: lines were lost; put the file back, or move its folder aside"
            )
        self._file.truncate(offset)
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()


def read_json_lines(path: Path, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (offset after the record, record) for every complete line from byte `start` on.

    A last line without its newline is still being written, and is left for the next call.

    Raises:
        DataError: a complete line is no JSON object (file and byte named).
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        offset = start
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield offset + len(line), _record(path, offset, line)
            offset += len(line)


def _record(path: Path, offset: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: the line at byte {offset} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}: the line at byte {offset} is no JSON object")
    return record


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become strings, which no reader takes for numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
