"""What a guard leaves on disk, and how to find what it started, by whoever comes later.

A process is named by its machine, its pid and its start time: a folder may be shared, and of a
process elsewhere nothing is known here; pids come again. Everything below a guard carries the
guard's token in its environment variable ATELIER_GUARD, also where the guard is gone and orphans
belong to nobody.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Any

import psutil

from atelier.errors import DataError
from atelier.processes.host import this_host
from atelier.tracking.run_directory import read_json_object

TOKEN = "ATELIER_GUARD"
_LARGEST_PID = 2**31 - 1


def identity(pid: int) -> dict[str, Any]:
    """{host, pid, started} of a living process; started is seconds since the epoch."""
    return {"host": this_host(), "pid": pid, "started": psutil.Process(pid).create_time()}


def is_elsewhere(process: dict[str, Any]) -> bool:
    """Whether the process is another machine's: only that one can tell whether it lives."""
    return bool(process["host"] != this_host())


def is_alive(process: dict[str, Any]) -> bool:
    """Whether the process that `identity` named still runs here. A zombie does not.

    Of one that `is_elsewhere` the answer means nothing.
    """
    if is_elsewhere(process):
        return False
    try:
        found = psutil.Process(process["pid"])
        same = abs(found.create_time() - process["started"]) < 0.1
        return bool(same and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def read_record(path: Path) -> dict[str, Any] | None:
    """A guard's record; None where the file is not one."""
    with contextlib.suppress(DataError):
        record = read_json_object(path)
        named = _is_identity(record.get("guard")) and _is_identity(record.get("owner"))
        if named and isinstance(record.get("token"), str):
            return record
    return None


def _is_identity(value: Any) -> bool:
    """Whether a value is what `identity` gives."""
    match value:
        case {"host": str(), "pid": int(pid), "started": int() | float() as started}:
            is_number = not isinstance(pid, bool) and not isinstance(started, bool)
            return is_number and 0 < pid <= _LARGEST_PID and math.isfinite(started)
    return False


def marked(token: str) -> list[psutil.Process]:
    """Living processes whose environment carries the token, but for this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            living = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if living and process.environ().get(TOKEN) == token:
                found.append(process)
    return found


def kill_marked(token: str, patience_seconds: float = 10.0) -> int:
    """SIGKILL everything that carries the token, until nothing does. Returns how many there were.

    For what a killed guard left: it had its chance to end well with the guard.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + patience_seconds
    while token and (left := marked(token)) and time.monotonic() < deadline:
        for process in left:
            killed.add(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)
    return len(killed)
