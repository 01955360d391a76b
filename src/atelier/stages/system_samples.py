"""Samples what the trainer's processes use of the machine, beside it, into train/system.jsonl."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from types import TracebackType

from atelier.processes.usage import Usage
from atelier.tracking.events import JsonLines
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
FIRST_AFTER_SECONDS = 2.0


class SystemSamples:
    """A context in which the tree below `pid` is sampled; its failure costs samples, not the run.

    `gpus`: which GPUs are the tree's, as CUDA_VISIBLE_DEVICES names them.
    """

    def __init__(self, run: RunDirectory, pid: int, gpus: str) -> None:
        self._run = run
        self._usage = Usage(pid, gpus)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="system-samples", daemon=True)

    def _follow(self) -> None:
        wait = FIRST_AFTER_SECONDS
        try:
            lines = JsonLines(self._run.system)
            while not self._end.wait(wait) and (sample := self._usage.sample()):
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                lines.append({"time": now, **sample})
                wait = EVERY_SECONDS
            lines.close()
        except OSError as error:
            logger.warning("no more samples of what the trainer uses: %s", error.strerror)

    def __enter__(self) -> SystemSamples:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join(timeout=5.0)
