"""The console of a flow run that a worker started.

The worker throws it away, or reads it through a pipe, and then a dead worker's pipe crashes the
flow at its next line. So it becomes a file in the run directory.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FILE = "flow.log"


def to_file(folder: Path) -> None:
    """Append what this process prints to `folder`/flow.log, if a worker started it."""
    if "PREFECT__FLOW_RUN_ID" not in os.environ or os.isatty(1):
        return
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
