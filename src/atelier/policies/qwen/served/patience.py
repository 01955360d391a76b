"""Asking again while a server is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from atelier.errors import Stopped
from atelier.outage import Outage
from atelier.policies.qwen.served.server import Passing

KEY = "rollout.sampler"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0

Found = TypeVar("Found")


def patiently(attempt: Callable[[], Found], deadline: float) -> Found:
    """What an attempt finds, made again with growing pauses where it is in vain for now.

    Raises:
        Stopped: it was in vain for `deadline` seconds.
    """
    outage, pause = Outage(KEY), _FIRST_PAUSE
    end = time.monotonic() + deadline
    while True:
        try:
            return attempt()
        except Passing as problem:
            if time.monotonic() + pause > end:
                raise Stopped(
                    f"{KEY}: nothing was drawn for {deadline:g} s ({KEY}.deadline): {problem}. "
                    "Mend the server and resume the run: no weight was changed since the last step"
                ) from None
            outage.failed(str(problem), end)
        time.sleep(pause)
        pause = min(_LONGEST_PAUSE, 2 * pause)
