"""What is written beside its target as `.NAME.PID`, and is nobody's once that process is gone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil


def beside(target: Path) -> Path:
    """Where this process writes what it then renames to `target`."""
    return target.with_name(f".{target.name}.{os.getpid()}")


def remove_abandoned(target: Path) -> None:
    """Remove what killed processes have left beside `target`: each can be as large as it."""
    for path in target.parent.glob(".*"):
        pid = path.name.removeprefix(f".{target.name}.")
        if pid.isdecimal() and not _is_another(int(pid)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_another(pid: int) -> bool:
    """Whether another process has this number: ours may have been that of a killed one."""
    return pid != os.getpid() and psutil.pid_exists(pid)
