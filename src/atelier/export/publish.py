"""Replace a directory by a finished one: readers see the old or the new, never half of either."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from atelier.abandoned import beside, remove_abandoned
from atelier.permissions import as_usual


def recover(target: Path) -> None:
    """Undo what a process killed inside `publish` or before it may have left beside `target`."""
    previous = _previous(target)
    if previous.exists() and not target.exists():
        previous.rename(target)
    shutil.rmtree(previous, ignore_errors=True)
    remove_abandoned(target)


def aside(target: Path) -> Path:
    """A new empty directory beside `target`, to be written in full and then published."""
    path = beside(target)
    path.mkdir(parents=True)
    return path


def publish(finished: Path, target: Path) -> None:
    """Rename `finished` to `target`; what was there before is removed only afterwards."""
    as_usual(sorted(finished.rglob("*")))
    previous = _previous(target)
    if target.exists():
        target.rename(previous)
    finished.rename(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    if previous.exists():
        shutil.rmtree(previous)


def _previous(target: Path) -> Path:
    return target.parent / f".{target.name}.previous"
