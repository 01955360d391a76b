"""Lock files that name their holder. The kernel drops a lock with its holder, so none is stale."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def holder(path: Path) -> str | None:
    """Who holds a lock file, as "PID on HOST"; None where nobody does. Changes nothing."""
    try:
        with path.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "unknown"
    except FileNotFoundError:
        pass
    return None


@contextmanager
def hold(path: Path) -> Iterator[str | None]:
    """Hold the lock file `path` inside; yields None, or who else holds it (held not)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read().strip() or "unknown"
            return
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield None


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Hold the lock file `path` inside, after whoever holds it now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
