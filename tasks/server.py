"""How flows ask the Prefect server something of their own: briefly, and surviving its absence."""

from __future__ import annotations

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectException

ANSWER_SECONDS = 5.0

# What a question raises while the server is away or does not know what it is asked about.
UNANSWERED: tuple[type[Exception], ...] = (httpx.HTTPError, PrefectException, OSError)


def ask_server() -> SyncPrefectClient:
    """A client for a `with` block. Threads must run in a copy of their starter's context, or they
    would look for another server."""
    return get_client(sync_client=True, httpx_settings={"timeout": ANSWER_SECONDS})
