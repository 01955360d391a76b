"""The trainer's log as it grows, and what its last error was."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger("atelier.trainer")

_ERROR = re.compile(
    r"^(?:\[rank\d+\]:\s*)?(?:[a-z_.]+\.)?([A-Z]\w*(?:Error|Stopped)|Stopped): (.*)"
)
# Torchrun's own lines and progress bars.
_NOISE = re.compile(r"^[IWE]\d{4} |^=+$|^-+$|.*\d%\|")
_END_BYTES = 64 * 1024


class LastError(NamedTuple):
    """The class name of the last error in a log, if there is one, and its message."""

    kind: str | None
    text: str


class LogTail:
    """What is appended to a file from now on: the log of one life of a program.

    Lines are shown whole, and noise is left out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = self._offset = path.stat().st_size if path.exists() else 0

    def last_error(self) -> LastError:
        """See `last_error`; of this life alone."""
        return last_error(self._path, self._begin)

    def show(self) -> None:
        """Log every line that was completed since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._offset += len(line)
                text = line.decode(errors="replace").rstrip().rpartition("\r")[2]
                if text and not _NOISE.match(text):
                    logger.info("%s", text)


def last_error(path: Path, start: int = 0) -> LastError:
    """The last "SomeError: message" of a log with the lines that belong to it, or its last line.

    Args:
        start: byte where the life in question begins; what an earlier one wrote is not its error.
    """
    if not path.exists():
        return LastError(None, "it wrote nothing")
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - _END_BYTES))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    lines = [line for line in lines if not _NOISE.match(line)]
    for index in range(len(lines) - 1, -1, -1):
        match = _ERROR.match(lines[index])
        if match:
            rest = []
            for line in lines[index + 1 :]:
                if not line.startswith(" "):
                    break
                rest.append(line)
            return LastError(match[1], "\n".join([match[2], *rest]))
    return LastError(None, lines[-1] if lines else "it wrote nothing")
