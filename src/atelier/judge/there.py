"""Whether OpenAI-compatible endpoints answer at all, before anything is asked of them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import httpx

from atelier.config.access_tokens import token_of
from atelier.judge.transport import trusted
from atelier.legible import legible

# Who answers so stands before a server that is not there.
_GATEWAY_STATUS = frozenset({502, 503, 504})


def not_there(urls: Sequence[str], token_env: str | None, key: str, end: float) -> str | None:
    """Why no endpoint answers at all; None where one does, whatever it says. Costs no tokens.

    Args:
        urls: base URLs, up to and with their /v1.
        token_env: variable with the token of all of them.
        key: where the configuration stands, for messages.
        end: when to give up, on the monotonic clock.

    Raises:
        ConfigError: its token is not in the environment, or SSL_CERT_FILE cannot be read.
    """
    token = token_of(token_env, key)
    reasons = []
    for url in urls:
        problem = _problem(url.rstrip("/"), token, max(0.1, end - time.monotonic()))
        if problem is None:
            return None
        reasons.append(legible(f"{url}: {problem}", token))
    return "; ".join(reasons)


def _problem(url: str, token: str | None, seconds: float) -> str | None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    verify = trusted(os.environ.get("SSL_CERT_FILE"))
    try:
        with (
            httpx.Client(verify=verify, trust_env=False, timeout=seconds) as client,
            client.stream("GET", f"{url}/models", headers=headers) as answer,
        ):
            status = answer.status_code
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return f"no answer: {type(error).__name__}: {error}"
    return f"status {status}" if status in _GATEWAY_STATUS else None
