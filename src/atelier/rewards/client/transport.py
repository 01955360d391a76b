"""HTTP to reward services: a request has its whole answer within its time, or a reason.

aiohttp, because it parses in C: a request of 16 small pictures costs half of what it costs with a
client in Python, and what it costs is taken from two cores that also score (benchmarks/README.md).
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError

from atelier.event_loop import Closed, EventLoop, Forked

_CONNECT_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 30
_LONGEST_ANSWER = 64 << 20
_LARGE_BODY = 1 << 20  # is sent in pieces, between which other requests go on
_QUOTED = re.compile(r"\s*:?\s*\b(?:b|bytearray\(b)?['\"].*|\n.*", re.DOTALL)
_START_SECONDS = 60.0  # enough to make a session wherever that is possible at all


@dataclass(frozen=True)
class Reply:
    """An answer, whatever it says. Names of headers are found in any case.

    `kept`: it came over a connection of an earlier request, so it may be one that nobody asked for.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes
    kept: bool = False


class Unanswered(Exception):
    """There is no answer; the text says why, in words that may be anybody's."""


class CannotBeAsked(Unanswered):
    """Nor will there be one: it is no address, the token is no header, or this is a fork."""


class Transport:
    """Connections that are kept, for any number of threads.

    Args:
        connections: at most.
        token: bearer token of every request.
    """

    def __init__(self, connections: int, token: str | None) -> None:
        self._loop = EventLoop("reward-requests")
        self._kept, self._fresh = self._loop.run(
            lambda: _sessions(connections, token), _START_SECONDS
        )

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        seconds: float,
        fresh: bool = False,
    ) -> Reply:
        """One request. A redirection is an answer too: the token goes nowhere else.

        Args:
            seconds: for all of it, from the look-up of the name to the last byte of the answer.
            fresh: over a connection that has carried nothing yet.

        Raises:
            Unanswered: for whatever reason there is no answer in time.
        """
        try:
            return self._loop.run(lambda: self._ask(method, url, headers, body, fresh), seconds)
        # None is chained: a traceback would quote the bytes of an answer, and in them the token.
        except TimeoutError as error:
            raise Unanswered(f"no answer in time ({type(error).__name__})") from None
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            text = f"{type(error).__name__}: {_cause(error)}"
            if isinstance(error, ValueError) and not isinstance(error, OSError):
                raise CannotBeAsked(f"cannot be asked: {text}") from None
            raise Unanswered(text) from None
        except Forked as error:
            raise CannotBeAsked(str(error)) from error
        except Closed as error:
            raise Unanswered("the rewards were closed") from error

    def close(self) -> None:
        """End every request under way, and the connections."""
        self._loop.close(self._close)

    async def _close(self) -> None:
        await self._kept.close()
        await self._fresh.close()

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, fresh: bool
    ) -> Reply:
        if not fresh:
            try:
                return await _exchange(self._kept, method, url, headers, body)
            except _Unasked:  # that connection is gone
                pass
        return await _exchange(self._fresh, method, url, headers, body)


async def _exchange(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
) -> Reply:
    data = io.BytesIO(body) if body and len(body) > _LARGE_BODY else body
    way: dict[str, bool] = {}
    request = session.request(
        method, url, data=data, headers=headers, allow_redirects=False, trace_request_ctx=way
    )
    async with request as response:
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > _LONGEST_ANSWER:
                raise Unanswered(f"an answer of more than {_LONGEST_ANSWER} bytes")
            chunks.append(chunk)
        content = b"".join(chunks)
        kept = way.get("kept", False)
        return Reply(response.status, response.reason or "", response.headers, content, kept)


class _Unasked(aiohttp.ClientError):
    """A kept connection holds an answer that nobody asked for."""


class _Request(aiohttp.ClientRequest):
    """One that is not sent where an answer is waiting already: it would be taken for its own."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        if conn.protocol is not None and conn.protocol.should_close:
            raise _Unasked("an answer before the request")
        return await super().send(conn)


class _Response(aiohttp.ClientResponse):
    """One whose connection ends when it is waited for no more.

    aiohttp closes such a connection when the rest of the body is sent, which is never as long as a
    service hangs and reads nothing: one connection would be left behind for every request.
    """

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        transport = connection.transport
        try:
            return await super().start(connection)
        except BaseException:
            if transport is not None:
                transport.abort()
            raise


async def _sessions(
    connections: int, token: str | None
) -> tuple[aiohttp.ClientSession, aiohttp.ClientSession]:
    """One that keeps connections and one that never does; to be made in the loop that uses them."""
    kept = aiohttp.TCPConnector(limit=connections, keepalive_timeout=_KEEP_ALIVE_SECONDS)
    fresh = aiohttp.TCPConnector(limit=connections, force_close=True)
    return _session(kept, token), _session(fresh, token)


def _session(connector: aiohttp.TCPConnector, token: str | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS),  # the loop's is total
        request_class=_Request,
        response_class=_Response,
        cookie_jar=aiohttp.DummyCookieJar(),  # a service is told nothing but what is asked
        trust_env=False,  # no proxy, no .netrc: the token goes where the configuration says
        trace_configs=[_tracing()],
    )


def _tracing() -> aiohttp.TraceConfig:
    """Tells a request, in its own context, that its connection was kept."""

    async def reused(_: object, context: Any, __: object) -> None:
        context.trace_request_ctx["kept"] = True

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(reused)
    return tracing


def _cause(error: BaseException) -> str:
    """An exception's words, but for those that aiohttp puts first."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientPayloadError):
        error = error.__cause__ or error
    words: object = error
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        # Without a status that nobody has answered, and without what the answer has instead.
        words = _QUOTED.sub("", error.message)
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        words = "the connection was closed before an answer"
    return str(words) or "the connection broke"
