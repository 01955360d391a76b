"""Samples what the trainer's processes use of the machine, beside it, into train/system.jsonl."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import UTC, datetime

from atelier.background import BackgroundLoop
from atelier.processes.usage import Usage
from atelier.tracking.events import JsonLines
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
FIRST_AFTER_SECONDS = 2.0


class SystemSamples(BackgroundLoop):
    """A context in which the tree below `pid` is sampled; its failure costs samples, not the run.

    `gpus`: which GPUs are the tree's, as CUDA_VISIBLE_DEVICES names them.
    """

    def __init__(self, run: RunDirectory, pid: int, gpus: str) -> None:
        super().__init__("system-samples", self._sample, FIRST_AFTER_SECONDS)
        self._system = run.system
        self._usage = Usage(pid, gpus)

    def _sample(self) -> float | None:
        sample = self._usage.sample()
        if not sample:
            return None
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with closing(JsonLines(self._system)) as lines:
                lines.append({"time": now, **sample})
        except OSError as error:
            logger.warning("no more samples of what the trainer uses: %s", error.strerror)
            return None
        return EVERY_SECONDS
