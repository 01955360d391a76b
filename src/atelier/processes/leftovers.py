"""Ends what killed guards left running. Called before anything new starts on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from atelier.processes.records import is_alive, is_elsewhere, kill_marked, read_record
from atelier.tracking.run_directory import write_json

# A guard's patience with its program (15 s), and then some.
ENDING_SECONDS = 25.0


def clean_up(folder: Path) -> list[str]:
    """Look through the guards' records below `folder` (its own `processes/` and its children's).

    A guard whose owner lives is left alone. One whose owner is gone is ending its program: it is
    waited for, so that nothing new meets what is about to end. One of another machine, in a folder
    that both share, is that machine's to look after: here it is neither alive nor dead.

    Returns:
        One line for every guard that was found dead without having ended its program.
    """
    lines = []
    deadline = time.monotonic() + ENDING_SECONDS
    for path in sorted([*folder.glob("processes/*.json"), *folder.glob("*/processes/*.json")]):
        while (record := read_record(path)) and _is_ending(record) and time.monotonic() < deadline:
            time.sleep(0.1)
        if record is None or "ended" in record or is_elsewhere(record["guard"]):
            continue
        if is_alive(record["guard"]):
            continue
        killed = kill_marked(record["token"])
        write_json(path, record | {"ended": "guard killed", "killed": killed})
        if killed:
            label = path.relative_to(folder).as_posix()
            lines.append(f"{label}: the guard was killed; ended {killed} processes it had started")
    return lines


def _is_ending(record: dict[str, Any]) -> bool:
    owner_is_gone = not is_alive(record["owner"])
    return "ended" not in record and owner_is_gone and is_alive(record["guard"])
