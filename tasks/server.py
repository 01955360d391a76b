"""How flows ask the Prefect server something of their own: briefly, and surviving its absence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectException

ANSWER_SECONDS = 5.0
ASK_AGAIN_SECONDS = 2.0

logger = logging.getLogger("atelier.flow")

# What a question raises while the server is away or does not know what it is asked about.
UNANSWERED: tuple[type[Exception], ...] = (httpx.HTTPError, PrefectException, OSError)


Answer = TypeVar("Answer")


def until_answered(question: Callable[[], Answer]) -> Answer:
    """What a question answers, asked again for as long as the server is away.

    For the flow's main thread, where a cancel ends the waiting.
    """
    said = False
    while True:
        try:
            return question()
        except (httpx.HTTPStatusError, httpx.TransportError) as error:
            if not is_away(error):
                raise
            if not said:
                logger.warning("the Prefect server does not answer; waiting for it: %s", error)
                said = True
        time.sleep(ASK_AGAIN_SECONDS)


def is_away(error: httpx.HTTPStatusError | httpx.TransportError) -> bool:
    """Whether it is the server's state that failed, and not what it was asked."""
    return isinstance(error, httpx.TransportError) or error.response.status_code >= 500


def ask_server() -> SyncPrefectClient:
    """A client for a `with` block. Threads must run in a copy of their starter's context, or they
    would look for another server."""
    return get_client(sync_client=True, httpx_settings={"timeout": ANSWER_SECONDS})
