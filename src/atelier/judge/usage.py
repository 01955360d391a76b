"""What a judge was asked, added up and kept as lines of judge_usage.jsonl.

A line is what came since the one before it, so any number of processes append to one file, one that
is resumed adds to it, and a killed one loses seconds. Questions are counted each time they are
asked, those of golden samples too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

logger = logging.getLogger(__name__)

NAME = "judge_usage.jsonl"
WRITE_SECONDS = 10.0  # between two lines, while questions come


class JudgeUsage(BaseModel):
    """Sums over questions and, of a judge behind endpoints, over calls.

    Attributes:
        missing: questions without an answer.
        from_cache: measurements that the cache had.
        calls: sent and not refused; a process that is killed has not counted those under way.
        money: in the currency of the prices; 0 without prices.
        input, output, cached: tokens; `cached`: those of the input that the provider had kept.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    questions: int = 0
    missing: int = 0
    from_cache: int = 0
    calls: int = 0
    money: float = 0.0
    input: int = 0
    output: int = 0
    cached: int = 0

    def __add__(self, other: JudgeUsage) -> JudgeUsage:
        names = type(self).model_fields
        return JudgeUsage(**{name: getattr(self, name) + getattr(other, name) for name in names})


class _Line(BaseModel):
    """A line of the file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    judge: str
    usage: JudgeUsage


class UsageLog:
    """Adds up what one judge was asked, from any thread, and appends it to a file.

    A disk that cannot be written is warned of once; what it did not take is tried again with what
    comes later.

    Args:
        path: the file, made with the first line; None keeps nothing.
        judge: the key of the judge's configuration.
    """

    def __init__(self, path: Path | None, judge: str) -> None:
        self._path = path
        self._judge = judge
        self._lock = threading.Lock()
        self._new = JudgeUsage()
        self._due = 0.0  # the first line at once: it shows that there is counting
        self._closed = False
        self._failed = False

    def add(self, usage: JudgeUsage) -> None:
        """Count what came, also after `close`: a question under way ends after it."""
        with self._lock:
            self._new += usage
            if self._closed or time.monotonic() >= self._due:
                self._write()

    def close(self) -> None:
        """Write what is left."""
        with self._lock:
            self._closed = True
            self._write()

    def _write(self) -> None:
        if self._path is None or self._new == JudgeUsage():
            return
        self._due = time.monotonic() + WRITE_SECONDS
        line = _Line(judge=self._judge, usage=self._new).model_dump_json(exclude_defaults=True)
        try:
            # After a failure a newline first: half of a line may be there.
            _append(self._path, ("\n" if self._failed else "") + line + "\n")
        except OSError as error:
            if not self._failed:
                logger.warning("%s: what judges are asked is not counted (%s)", self._path, error)
            self._failed = True
        else:
            self._new = JudgeUsage()


def read_usage(paths: Iterable[Path]) -> dict[str, JudgeUsage]:
    """Sums of files by judge; a judge that none of them names, or a file that is not there, adds
    nothing. A damaged line, cut off by a full disk, is left out with a warning."""
    sums: dict[str, JudgeUsage] = {}
    for path in paths:
        for text in path.read_bytes().splitlines() if path.exists() else ():
            if not text.strip():
                continue
            try:
                line = _Line.model_validate_json(text)
            except ValidationError:
                logger.warning("%s: a damaged line, left out", path)
                continue
            sums[line.judge] = sums.get(line.judge, JudgeUsage()) + line.usage
    return sums


def _append(path: Path, text: str) -> None:
    """In one write, so that lines of several processes do not mix.

    Raises:
        OSError: not all of it was written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    with path.open("ab", buffering=0) as file:
        if (written := file.write(content)) != len(content):
            raise OSError(f"only {written} of {len(content)} bytes were written")
