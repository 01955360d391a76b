"""Requests to one vLLM server: JSON out, JSON back, or a typed failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from atelier.errors import ConfigError
from atelier.event_loop import EventLoop
from atelier.legible import legible

logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request

_CONNECT_SECONDS = 10.0
_PASSING_STATUS = frozenset({404, 408, 409, 425, 429})  # and all of 5xx
_SAID = 500  # characters of a refusal

Json = dict[str, Any]


class Passing(Exception):
    """No answer, or none by the weights that were asked for; one may come later."""


class Server:
    """One server, asked from any thread.

    Args:
        url: its root, without /v1.
        token: bearer token.
        seconds: that one request may take.
    """

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._seconds = seconds
        self._loop = EventLoop("completions")
        self._client = self._loop.run(self._open, _CONNECT_SECONDS)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """One answer.

        Raises:
            Passing: there is none now.
            ConfigError: the server refuses the request, and always will.
        """
        return self.post_all(path, [body])[0]

    def post_all(self, path: str, bodies: Sequence[Mapping[str, Any] | None]) -> list[Json]:
        """Answers of requests that are made side by side, in their order; see `post`."""
        return self._run([("POST", path, body) for body in bodies])

    def get(self, path: str) -> Json:
        """See `post`."""
        return self._run([("GET", path, None)])[0]

    def close(self) -> None:
        """End every request under way, and the connections."""
        self._loop.close(self._client.aclose)

    async def _open(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),  # the loop bounds the whole
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    def _run(self, requests: Sequence[tuple[str, str, Any]]) -> list[Json]:
        try:
            return self._loop.run(lambda: self._together(requests), self._seconds)
        except TimeoutError:
            raise Passing(f"{self.url}: no answer within {self._seconds:g} s") from None
        except httpx.HTTPError as error:
            text = f"{self.url}: {type(error).__name__}: {error}"
            raise Passing(legible(text, self._token)) from None

    async def _together(self, requests: Sequence[tuple[str, str, Any]]) -> list[Json]:
        """All answers, or the first failure: then the others are given up, and the server told."""
        tasks = [asyncio.ensure_future(self._ask(*one)) for one in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _ask(self, method: str, path: str, body: Any) -> Json:
        answer = await self._client.request(method, f"{self.url}{path}", json=body)
        status = answer.status_code
        if status == 200:
            return self._object(answer)
        said = legible(answer.text[:_SAID], self._token)
        text = f"{self.url}{path} says {status}: {said}"
        if status >= 500 or status in _PASSING_STATUS:
            raise Passing(text)
        raise ConfigError(f"rollout.sampler: {text}")

    def _object(self, answer: httpx.Response) -> Json:
        """What it says; an answer without a body, or of plain words, says nothing more."""
        if "application/json" not in answer.headers.get("content-type", ""):
            return {}
        try:
            found = answer.json()
        except ValueError:
            raise Passing(f"{self.url}: an answer that is cut off") from None
        return found if isinstance(found, dict) else {}
