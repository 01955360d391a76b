"""What a request must pass before anything looks at it: token, bounded queue, bounded body.

A plain ASGI layer around the application, because a framework reads a body whole before a handler
can refuse it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atelier.rewards.service.metrics import Metrics
from atelier.rewards.service.protocol import QUEUE_HEADER, Error, ErrorAnswer

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
SCORE_PATH = "/score"
RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True)
class Bounds:
    """Bytes of a body, seconds it may take to arrive, requests waiting or being scored; bytes of a
    body that is not scored, and how many of them are read at a time."""

    body: int = 128 << 20
    body_seconds: float = 60.0
    queue: int = 32
    other_body: int = 4 << 10
    other_bodies: int = 128


@dataclass
class Door:
    """What the gate asks before it takes a batch, and how many it has taken."""

    ready: bool = False
    draining: bool = False
    inside: int = 0
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self) -> None:
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1
        self._left.set()

    async def wait_empty(self, seconds: float) -> int:
        """Wait until nothing is inside, or that long. Returns how many still are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.inside:
                    self._left.clear()
                    await self._left.wait()
        return self.inside


class Refused(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, kind: str, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.error = Error(type=kind, message=message, retryable=retryable)

    def response(self) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.error.retryable:
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        body = ErrorAnswer(error=self.error).model_dump()
        return JSONResponse(body, self.status, headers)


class Gate:
    """The application behind its bounds.

    Args:
        token: what every request but to OPEN_PATHS must bear, if anything.
    """

    def __init__(
        self, app: ASGIApp, bounds: Bounds, door: Door, metrics: Metrics, token: str | None
    ) -> None:
        self._app = app
        self._bounds = bounds
        self._door = door
        self._metrics = metrics
        self._token = token.encode() if token else None
        self._reading = 0  # bodies that are not scored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scores = scope["path"] == SCORE_PATH
        if scores:
            send = self._counting(send)
        try:
            self._require_token(scope)
            if scores:
                await self._score(scope, receive, send)
            else:
                await self._other_body(scope, receive)
                await self._app(scope, _replay(b"", receive), send)
        except Refused as refused:
            self._metrics.refused(refused.error)
            await refused.response()(scope, receive, send)

    def _counting(self, send: Send) -> Send:
        """Answers are counted by their status, and say how long the queue is."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(message["status"]).inc()
                MutableHeaders(scope=message)[QUEUE_HEADER] = str(self._door.inside)
            await send(message)

        return counted

    async def _score(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._require_open()
        self._door.enter()  # before the body is read: it is the bodies that take memory
        try:
            body = await self._body(scope, receive, self._bounds.body)
            await self._app(scope, _replay(body, receive), send)
        finally:
            self._door.leave()

    def _require_token(self, scope: Scope) -> None:
        if self._token is None or scope["path"] in OPEN_PATHS:
            return
        kind, _, given = _header(scope, b"authorization").partition(b" ")
        if not hmac.compare_digest(given, self._token) or kind.lower() != b"bearer":
            raise Refused(401, "unauthorized", "the bearer token is missing or wrong")

    def _require_open(self) -> None:
        if self._door.draining:
            raise Refused(503, "draining", "this service takes no more requests", True)
        if not self._door.ready:
            raise Refused(503, "not_ready", "not every golden sample is scored; see /readyz", True)
        if self._door.inside >= self._bounds.queue:
            self._metrics.shed.inc()
            raise Refused(503, "queue_full", f"{self._bounds.queue} requests are waiting", True)

    async def _other_body(self, scope: Scope, receive: Receive) -> None:
        """Let a body pass that nobody looks at. On the open paths it is not even read: anybody may
        send one, and must keep neither memory nor the health checks busy."""
        most = self._bounds.other_body
        if scope["path"] in OPEN_PATHS:
            _require_short(_declared(scope), most)
            return
        if self._reading >= self._bounds.other_bodies:
            raise Refused(503, "busy", f"{self._reading} requests are being read", True)
        self._reading += 1
        try:
            await self._body(scope, receive, most)
        finally:
            self._reading -= 1

    async def _body(self, scope: Scope, receive: Receive, most: int) -> bytes:
        """All of the body, or a refusal as soon as it is known to be too long or too slow."""
        _require_short(_declared(scope), most)
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._bounds.body_seconds):
                while (message := await receive())["type"] == "http.request":
                    size += len(message.get("body", b""))
                    _require_short(size, most)
                    chunks.append(message.get("body", b""))
                    if not message.get("more_body"):
                        return b"".join(chunks)
        except TimeoutError as error:
            text = f"the body took longer than {self._bounds.body_seconds:g} s"
            raise Refused(408, "slow_body", text, True) from error
        raise Refused(400, "disconnected", "the client went away")


def _require_short(size: float, most: int) -> None:
    if size > most:
        raise Refused(413, "too_large", f"the body is longer than {most} bytes")


def _declared(scope: Scope) -> float:
    """Bytes of a body by its header; infinitely many if that says nothing of the kind."""
    declared = _header(scope, b"content-length") or b"0"
    # Digits only, and few: int() would take " 1_0" too, and refuses thousands of them.
    return int(declared) if declared.isdigit() and len(declared) < 20 else math.inf


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message, and then whatever comes (the client's leaving)."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message
