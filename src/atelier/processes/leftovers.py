"""Ends what killed guards left running. Called before anything new starts on this machine."""

from __future__ import annotations

from pathlib import Path

from atelier.processes.records import is_alive, kill_marked, read_record
from atelier.tracking.run_directory import write_json


def clean_up(folder: Path) -> list[str]:
    """Look through the guards' records below `folder` (its own `processes/` and its children's).

    A living guard is left alone: it ends by itself when its owner is gone.

    Returns:
        One line for every guard that was found dead without having ended its program.
    """
    lines = []
    for path in sorted([*folder.glob("processes/*.json"), *folder.glob("*/processes/*.json")]):
        record = read_record(path)
        if record is None or "ended" in record or is_alive(record["guard"]):
            continue
        killed = kill_marked(record["token"])
        write_json(path, record | {"ended": "guard killed", "killed": killed})
        if killed:
            label = path.relative_to(folder).as_posix()
            lines.append(f"{label}: the guard was killed; ended {killed} processes it had started")
    return lines
