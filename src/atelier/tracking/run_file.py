"""Changes of run.json, one at a time: the pipeline, a stage and the mirror of a run all make some.

Each keeps what the others wrote, so it reads, changes and writes while it holds a lock: between
reading and writing, another one's change would be lost. Who only reads needs none, for the file is
replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from atelier.processes.locks import waiting_for
from atelier.tracking.run_directory import RunDirectory, read_run_file, write_json

LOCK = ".run.json.lock"


@contextmanager
def changing_run_file(run: RunDirectory) -> Iterator[None]:
    """Inside, no other process and no other thread changes run.json; waits until that is so."""
    with waiting_for(run.root / LOCK):
        yield


def note_in_run_file(run: RunDirectory, **values: Any) -> None:
    """Write these values into run.json, and keep all others.

    Raises:
        DataError: it is missing, or no run file.
    """
    with changing_run_file(run):
        write_json(run.run_file, read_run_file(run) | values)
