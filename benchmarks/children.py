"""Programs that a benchmark waits for, and that do not outlive it, however it ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from atelier.processes.supervised import SupervisedProcess

LAST = 6000  # bytes of a failed program's output that are shown


def finish(command: Sequence[str], **environment: str) -> None:
    """Run a program to its end; its output is shown where it fails.

    Raises:
        SystemExit: it did.
    """
    with tempfile.TemporaryDirectory(prefix="atelier-benchmark-") as folder:
        log = Path(folder) / "program.log"
        given = {**os.environ, **environment}
        with SupervisedProcess(command, log, given, Path.cwd()) as process:
            code = process.wait()
        if code:
            words = log.read_bytes()[-LAST:].decode(errors="replace")
            raise SystemExit(f"{' '.join(command)}: exit code {code}\n{words}")
