"""Checkpoints are written beside training: one at a time, from copies that nobody changes."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FrameType, TracebackType
from typing import Any

logger = logging.getLogger(__name__)


class Saving:
    """A context that ends when nothing is being written any more, whatever ended it: the run's lock
    is given up behind it. SIGTERM, while something is written, waits for it, and then ends the
    process as it would have."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._before: Any = None

    def begin(self, write: Callable[[], None]) -> None:
        """Call `write` in the background, when the one before has ended.

        Raises:
            what stopped that.
        """
        self.wait()
        self._hold_signal()
        self._writing = self._thread.submit(write)

    def check(self) -> None:
        """Raise what stopped a write, if it has ended."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Until all is written; raise what stopped it, once."""
        try:
            if self._writing is not None:
                self._writing.result()
        finally:
            self._writing = None  # and not before: SIGTERM, meanwhile, waits for it
            self._release_signal()

    def __enter__(self) -> Saving:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self.wait()
            return
        self._release_signal()
        if self._writing is not None and (other := self._writing.exception()) is not None:
            logger.error("and a checkpoint could not be written: %s", other)

    def _hold_signal(self) -> None:
        """Only while there is something to wait for: Python calls it between two of its own
        instructions, and a rank that waits for others would answer when these do."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._end)

    def _release_signal(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            signal.signal(signal.SIGTERM, before)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._writing is not None:
            wait([self._writing])
        self._release_signal()
        signal.raise_signal(number)
