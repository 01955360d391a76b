"""The endpoints of one judge: the next call goes to a healthy one with the fewest under way.

All of it happens in the client's event loop, so nothing is locked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atelier.judge.ledger import Usage
from atelier.judge.replies import CallFailed, Reply
from atelier.judge.transport import Transport

_FIRST_REST, _LONGEST_REST = 0.5, 30.0


@dataclass
class _Endpoint:
    transport: Transport
    in_flight: int = 0
    failures: int = 0
    rests_until: float = 0.0

    def order(self) -> tuple[float, int]:
        """The least is asked: those that rest last, and of them the one whose rest ends first."""
        return self.rests_until if self.rests_until > time.monotonic() else 0.0, self.in_flight

    def failed(self) -> None:
        rest = min(_LONGEST_REST, _FIRST_REST * 2.0**self.failures)
        self.failures = min(self.failures + 1, 16)
        self.rests_until = time.monotonic() + rest


class Endpoints:
    """Replicas that serve the same model.

    Args:
        urls: base URLs, up to and with their /v1; at least one.
        token: bearer token of all of them.
        connections: kept at a time, to each.

    Raises:
        ConfigError: SSL_CERT_FILE cannot be read.
    """

    def __init__(self, urls: Sequence[str], token: str | None, connections: int) -> None:
        self._all = [_Endpoint(Transport(url, token, connections)) for url in urls]

    async def chat(
        self, body: Mapping[str, Any], seconds: float
    ) -> tuple[list[Reply], Usage | None]:
        """The replies of one call, at least one, and the tokens they took where the endpoint says.

        Raises:
            CallFailed: for whatever reason there is none within `seconds`.
        """
        endpoint = min(self._all, key=_Endpoint.order)
        endpoint.in_flight += 1
        try:
            async with asyncio.timeout(seconds):
                answer = await endpoint.transport.chat(body)
        except TimeoutError as error:
            endpoint.failed()
            raise endpoint.transport.late(seconds) from error
        except CallFailed as failure:
            if failure.retryable:
                endpoint.failed()
            raise
        finally:
            endpoint.in_flight -= 1
        endpoint.failures, endpoint.rests_until = 0, 0.0
        return answer

    async def close(self) -> None:
        for endpoint in self._all:
            await endpoint.transport.close()
