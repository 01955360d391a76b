"""Sending vLLM servers to sleep, so that they give their GPU memory back, and waking them.

Level 1: weights wait in main memory. The requests are those of vLLM's development mode, and each
may be repeated: who sleeps can be sent to sleep, and who is awake can be woken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import httpx

logger = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request

_SECONDS = 120.0  # weights of a large model come back through the bus
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0


class Sleeper:
    """The servers of one judge.

    Args:
        urls: base URLs, with their /v1.
        token: bearer token of all of them.
    """

    def __init__(self, urls: Sequence[str], token: str | None) -> None:
        self._roots = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def sleep(self) -> None:
        """Send all to sleep. One that cannot be reached is warned of: it keeps its memory."""
        for root in self._roots:
            if problem := self._post(f"{root}/sleep?level=1"):
                logger.warning("%s: was not sent to sleep: %s", root, problem)

    def wake(self, deadline: float) -> str | None:
        """Wake all, trying again until `deadline` seconds have passed.

        Returns:
            Why one could not be woken; None where all are awake.
        """
        end, pause = time.monotonic() + deadline, _FIRST_PAUSE
        for root in self._roots:
            while problem := self._post(f"{root}/wake_up"):
                if time.monotonic() + pause > end:
                    return f"{root} could not be woken: {problem}"
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
        return None

    def _post(self, url: str) -> str | None:
        try:
            answer = httpx.post(url, headers=self._headers, timeout=_SECONDS, trust_env=False)
        except httpx.HTTPError as error:
            return type(error).__name__
        return None if answer.status_code == 200 else f"it says {answer.status_code}"
