"""The services behind one reward: which one to ask next, and asking it.

Healthy ones first, among them the one with the fewest requests in flight: this client's own, and
those of others that the service told of in its last answers. A service that failed
rests, longer each time; when all rest, the one whose rest ends first is tried. One that refused a
batch for good is asked for it again only after all others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from atelier.legible import legible
from atelier.rewards.client.transport import CannotBeAsked, Reply, Transport, Unanswered
from atelier.rewards.service.protocol import QUEUE_HEADER, ErrorAnswer, Identity

VERSION_PATH = "/version"
_REPORT_SECONDS = 5.0  # after which what a service said of its queue counts no more
_FIRST_REST, _LONGEST_REST = 0.5, 30.0
_PASSING_STATUS = frozenset({408, 425, 429})  # and all of 5xx
_ABOUT_THE_BATCH = frozenset({400, 413, 422})  # another service would say the same

Answer = TypeVar("Answer", bound=BaseModel)
Failure = TypeVar("Failure", bound="NoAnswer")


class NoAnswer(Exception):
    """A service gave no usable answer.

    Attributes:
        url: the service's.
        retryable: it, or another one, may give one later.
        retry_after: seconds that the service asks to be left alone.
    """

    retryable = True

    def __init__(self, reason: str, url: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.url = url
        self.retry_after = retry_after


class NotThere(NoAnswer):
    """Nothing answered: no connection, or no answer on it in time."""


class BatchRefused(NoAnswer):
    """The service says that the batch itself is wrong; every other one would say so too."""

    retryable = False


class ServiceRefuses(NoAnswer):
    """The service refuses whatever it is asked, such as with 401 or 404; another one may not."""

    retryable = False


class WrongService(NoAnswer):
    """A service answers that scores something else than what is wanted."""


class Endpoint:
    """One service.

    Attributes:
        identity: what it said it scores with, None while that is not checked.
        takes: media types of a batch that it said it takes; empty where it did not say.
    """

    def __init__(self, url: str, transport: Transport, token: str | None) -> None:
        self.url = url.rstrip("/")
        self.identity: Identity | None = None
        self.takes: frozenset[str] = frozenset()
        self.in_flight = 0
        self.failures = 0
        self.rests_until = 0.0
        self.left_alone_until = 0.0  # as it asked, by Retry-After
        self._others, self._others_until = 0, 0.0
        self._transport = transport
        self._token = token

    @property
    def load(self) -> int:
        """Requests in flight, with those of others as far as they are known."""
        return self.in_flight + (self._others if time.monotonic() < self._others_until else 0)

    def get(self, path: str, kind: type[Answer], end: float) -> Answer:
        """GET, parsed as `kind`. `end`: when to give up, on the monotonic clock.

        Raises:
            NoAnswer: for whatever reason there is no answer of that kind.
        """
        return self._ask("GET", path, {}, None, kind, end)

    def post(
        self, path: str, media_type: str, body: bytes, kind: type[Answer], end: float
    ) -> Answer:
        """POST of a body, else as `get`."""
        return self._ask("POST", path, {"Content-Type": media_type}, body, kind, end)

    def failure(self, kind: type[Failure], reason: str, retry_after: float = 0.0) -> Failure:
        """An exception that names this service; the reason may hold words of its own."""
        return kind(legible(f"{self.url}: {reason}", self._token), self.url, retry_after)

    def _ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        kind: type[Answer],
        end: float,
    ) -> Answer:
        own = self.in_flight
        # An answer to /score tells whose it is; any other is believed of a new connection only,
        # because on a kept one may wait what nobody asked for. And a failure may be its fault.
        fresh = method == "GET" or self.failures > 0
        reply = self._exchange(method, path, headers, body, end, fresh)
        if reply.kept and _refuses_for_good(method, reply.status):
            reply = self._exchange(method, path, headers, body, end, fresh=True)
        self._note(path, reply.headers, max(own, self.in_flight))
        if reply.status != 200:
            raise self._refusal(method, reply)
        try:
            return kind.model_validate_json(reply.content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            text = f"malformed answer: {where or 'body'}: {first['msg']}"
            raise self.failure(NoAnswer, text) from None  # its text quotes the answer

    def _exchange(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        end: float,
        fresh: bool,
    ) -> Reply:
        left = end - time.monotonic()
        if left <= 0:
            raise self.failure(NotThere, "no time left to ask")
        try:
            return self._transport.ask(method, self.url + path, headers, body, left, fresh)
        except CannotBeAsked as error:
            raise self.failure(ServiceRefuses, str(error)) from None
        except Unanswered as error:
            raise self.failure(NotThere, str(error)) from None

    def _note(self, path: str, headers: Mapping[str, str], own: int) -> None:
        """What an answer says of its service: the queue there, the bodies that it takes.

        Args:
            own: how many of the queue may have been this client's when the service counted.
        """
        if path == VERSION_PATH:  # another service may answer there now, which does not say so
            self.takes = frozenset(headers.get("Accept-Post", "").split(", "))
        queue = headers.get(QUEUE_HEADER, "")
        if queue.isdecimal() and len(queue) < 6:
            self._others = max(0, int(queue) - own)
            self._others_until = time.monotonic() + _REPORT_SECONDS

    def _refusal(self, method: str, reply: Reply) -> NoAnswer:
        try:
            error = ErrorAnswer.model_validate_json(reply.content).error
            text = f"{reply.status} {error.type}: {error.message}"
        except ValidationError:
            text = f"{reply.status} {reply.reason}"
        if after := reply.headers.get("Retry-After", ""):
            text = f"{text} (Retry-After: {after})"
        seconds = float(after) if after.isdecimal() and len(after) < 6 else 0.0
        return self.failure(_kind_of_refusal(method, reply.status), text, seconds)


def _refuses_for_good(method: str, status: int) -> bool:
    return status != 200 and not _kind_of_refusal(method, status).retryable


def _kind_of_refusal(method: str, status: int) -> type[NoAnswer]:
    if status >= 500 or status in _PASSING_STATUS:
        return NoAnswer
    if status in _ABOUT_THE_BATCH and method == "POST":
        return BatchRefused
    return ServiceRefuses


class Endpoints:
    """All services of a reward, for any number of threads."""

    def __init__(self, urls: Sequence[str], token: str | None, concurrency: int) -> None:
        self._transport = Transport(concurrency + len(urls), token)
        self.all = [Endpoint(url, self._transport, token) for url in urls]
        self._lock = threading.Lock()

    @contextmanager
    def chosen(self, refused: Container[str] = ()) -> Iterator[Endpoint]:
        """The service to ask now; NoAnswer inside makes it rest, anything else makes it healthy.

        Args:
            refused: URLs of services that refused what is to be asked.
        """
        with self._lock:
            endpoint = min(self.all, key=lambda one: (one.url in refused, *_order(one)))
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

    def asked_to_wait(self, refused: Container[str] = ()) -> float:
        """Seconds until there is a service that asked for no pause, or whose pause is over."""
        asked = [one.left_alone_until for one in self.all if one.url not in refused]
        return max(0.0, min(asked, default=0.0) - time.monotonic())

    def all_in(self, refused: Container[str]) -> bool:
        """Whether every service refused."""
        return all(one.url in refused for one in self.all)

    def close(self) -> None:
        """End every request under way, and the connections."""
        self._transport.close()

    def _failed(self, endpoint: Endpoint, failure: NoAnswer) -> None:
        if isinstance(failure, BatchRefused):  # nothing is wrong with the service
            return
        with self._lock:
            rest = min(_LONGEST_REST, _FIRST_REST * 2.0**endpoint.failures)
            endpoint.failures = min(endpoint.failures + 1, 16)
            # At most the longest rest: a mended service is needed where the others fail.
            rest = max(rest, min(failure.retry_after, _LONGEST_REST))
            endpoint.rests_until = time.monotonic() + rest
            endpoint.left_alone_until = time.monotonic() + failure.retry_after


def _order(endpoint: Endpoint) -> tuple[float, int]:
    resting = endpoint.rests_until if endpoint.rests_until > time.monotonic() else 0.0
    return resting, endpoint.load
