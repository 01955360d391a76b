"""Waiting until servers are ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from atelier.stages.servers.managed import ManagedServer

logger = logging.getLogger(__name__)

POLL_SECONDS, _PROGRESS_SECONDS = 0.1, 5.0


def wait_until_ready(
    servers: Sequence[ManagedServer], until: Callable[[], bool] = lambda: False
) -> None:
    """Raise the first problem; say what is waited for."""
    begun = said = time.monotonic()
    while waiting := [one for one in servers if not one.is_ready]:
        for server in waiting:
            if server.problem is not None:
                raise server.problem
        if until():
            return
        if time.monotonic() - said > _PROGRESS_SECONDS:
            said = time.monotonic()
            text = "; ".join(f"{one.spec.label}: {one.says}" for one in waiting)
            logger.info("waiting for servers (%.0f s): %s", said - begun, text)
        time.sleep(POLL_SECONDS)
