"""What an export does now: it takes minutes, and nothing else is to be seen of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

SAY_EVERY_SECONDS = 15.0


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Log what begins, that it goes on, and how long it took; nothing more where it fails."""
    begun, ended = time.monotonic(), threading.Event()

    def go_on() -> None:
        while not ended.wait(SAY_EVERY_SECONDS):
            logger.info("export: still %s (%.0f s)", what, time.monotonic() - begun)

    logger.info("export: %s", what)
    threading.Thread(target=go_on, name="export-progress", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
    logger.info("export: %s took %.1f s", what, time.monotonic() - begun)
