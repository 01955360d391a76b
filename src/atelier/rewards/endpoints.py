"""The services behind one reward: which one to ask next, and asking it.

Healthy ones first, among them the one with the fewest requests in flight. A service that failed
rests, longer each time; when all rest, the one whose rest ends first is tried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from atelier.rewards.service.protocol import ErrorAnswer, Identity

CONNECT_SECONDS = 5.0
_LONGEST_ANSWER = 64 << 20
_FIRST_REST, _LONGEST_REST = 0.5, 30.0
_RETRYABLE_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})

Answer = TypeVar("Answer", bound=BaseModel)


class NoAnswer(Exception):
    """A service gave no usable answer.

    Attributes:
        retryable: it, or another one, may give one later.
        retry_after: seconds that the service asks to be left alone.
    """

    def __init__(self, reason: str, retryable: bool = True, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.retry_after = retry_after


class WrongService(NoAnswer):
    """A service answers that scores something else than what is wanted."""


class Endpoint:
    """One service. `identity` is what it said it scores with, None while that is not checked."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self.url = url.rstrip("/")
        self.identity: Identity | None = None
        self.in_flight = 0
        self.failures = 0
        self.rests_until = 0.0
        self.left_alone_until = 0.0  # as it asked, by Retry-After
        self._client = client

    def get(self, path: str, kind: type[Answer], end: float) -> Answer:
        """GET, parsed as `kind`. `end`: when to give up, on the monotonic clock.

        Raises:
            NoAnswer: for whatever reason there is no answer of that kind.
        """
        return self._ask("GET", path, None, kind, end)

    def post(self, path: str, body: bytes, kind: type[Answer], end: float) -> Answer:
        """POST of a JSON body, else as `get`."""
        return self._ask("POST", path, body, kind, end)

    def _ask(
        self, method: str, path: str, body: bytes | None, kind: type[Answer], end: float
    ) -> Answer:
        left = end - time.monotonic()
        if left <= 0:
            raise NoAnswer(f"{self.url}: no time left to ask")
        timeout = httpx.Timeout(left, connect=min(CONNECT_SECONDS, left))
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            with self._client.stream(
                method, self.url + path, content=body, headers=headers, timeout=timeout
            ) as response:
                content = self._read(response, end)
        except httpx.TimeoutException as error:
            raise NoAnswer(f"{self.url}: no answer in time ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            raise NoAnswer(f"{self.url}: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise self._refusal(response, content)
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            text = f"{self.url}: malformed answer: {where or 'body'}: {first['msg']}"
            raise NoAnswer(text) from error

    def _read(self, response: httpx.Response, end: float) -> bytes:
        """The body; httpx bounds the wait for each part of it only, a drip would go on for ever."""
        chunks, size = [], 0
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > _LONGEST_ANSWER:
                raise NoAnswer(f"{self.url}: an answer of more than {_LONGEST_ANSWER} bytes")
            if time.monotonic() > end:
                raise NoAnswer(f"{self.url}: the answer did not end in time")
            chunks.append(chunk)
        return b"".join(chunks)

    def _refusal(self, response: httpx.Response, content: bytes) -> NoAnswer:
        status = response.status_code
        try:
            error = ErrorAnswer.model_validate_json(content).error
            said = f"{error.type}: {error.message}"
        except ValidationError:
            said = response.reason_phrase
        after = response.headers.get("Retry-After", "")
        seconds = float(after) if after.isdigit() and len(after) < 6 else 0.0
        text = f"{self.url}: {status} {said}"
        return NoAnswer(text, status in _RETRYABLE_STATUS, seconds)


class Endpoints:
    """All services of a reward, for any number of threads."""

    def __init__(self, urls: Sequence[str], token: str | None, concurrency: int) -> None:
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            limits=httpx.Limits(max_connections=concurrency + len(urls), keepalive_expiry=30),
            trust_env=False,  # no proxy, no .netrc: the token goes where the configuration says
        )
        self.all = [Endpoint(url, self._client) for url in urls]
        self._lock = threading.Lock()

    @contextmanager
    def chosen(self) -> Iterator[Endpoint]:
        """The service to ask now; NoAnswer inside makes it rest, anything else makes it healthy."""
        with self._lock:
            endpoint = min(self.all, key=self._order)
            endpoint.in_flight += 1
        try:
            yield endpoint
        except NoAnswer as failure:
            self._failed(endpoint, failure)
            raise
        else:
            endpoint.failures, endpoint.rests_until = 0, 0.0
        finally:
            with self._lock:
                endpoint.in_flight -= 1

    def asked_to_wait(self) -> float:
        """Seconds until there is a service that asked for no pause, or whose pause is over."""
        return max(0.0, min(one.left_alone_until for one in self.all) - time.monotonic())

    def close(self) -> None:
        self._client.close()

    def _order(self, endpoint: Endpoint) -> tuple[float, int]:
        resting = endpoint.rests_until if endpoint.rests_until > time.monotonic() else 0.0
        return resting, endpoint.in_flight

    def _failed(self, endpoint: Endpoint, failure: NoAnswer) -> None:
        if not failure.retryable:  # it answered, and will say the same again
            return
        with self._lock:
            rest = min(_LONGEST_REST, _FIRST_REST * 2.0**endpoint.failures)
            endpoint.failures = min(endpoint.failures + 1, 16)
            endpoint.rests_until = time.monotonic() + rest
            endpoint.left_alone_until = time.monotonic() + failure.retry_after
