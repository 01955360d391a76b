"""What is said of a server that does not answer: since when, until when, and what to look at.

Questions come in batches and from many threads, and each is asked again and again: the first
failure is said at once, and the others now and then, with their number.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timedelta

logger = logging.getLogger(__name__)

SAY_EVERY_SECONDS = 60.0


def leave_to_another_rank() -> None:
    """Say nothing here: of several ranks that ask the same servers, one speaks."""
    logger.setLevel(logging.ERROR)


class Outage:
    """Of one server, or of the replicas of one.

    Args:
        key: where it stands in the configuration, such as `judges.far`.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._since: datetime | None = None
        self._unsaid = 0  # failures that were kept back
        self._say_after = 0.0

    def failed(self, reason: str, end: float) -> None:
        """Warn of a failure after which the server is asked again.

        Args:
            end: when that ends at the latest, on the monotonic clock.
        """
        with self._lock:
            monotonic, now = time.monotonic(), datetime.now()
            self._since = self._since or now
            self._unsaid += 1
            if monotonic < self._say_after:
                return
            others = f" ({self._unsaid - 1} more like it since)" if self._unsaid > 1 else ""
            self._unsaid, self._say_after = 0, monotonic + SAY_EVERY_SECONDS
            since, until = self._since, now + timedelta(seconds=max(0.0, end - monotonic))
        logger.warning(
            "%s: %s%s; without an answer since %s, asked again until %s at the latest: is it "
            "started, and is that its address?",
            *(self._key, reason, others, f"{since:%H:%M:%S}", f"{until:%H:%M:%S}"),
        )

    def answered(self) -> None:
        """The next failure begins another outage."""
        self._since = None
