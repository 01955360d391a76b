"""One call of an OpenAI-compatible endpoint: chat completions in, replies or a typed failure out.

The openai package makes the call. It takes seconds to import, so this module is imported when a
client is made; and it reads variables of the environment, which no endpoint is sent.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpx2
import openai
from pydantic import BaseModel, Field, ValidationError

from atelier.errors import ConfigError
from atelier.judge.ledger import Usage
from atelier.judge.replies import CallFailed, Reply
from atelier.legible import legible, without_secret

logging.getLogger("httpx2").setLevel(logging.WARNING)  # it reports every request

_CONNECT_SECONDS = 10.0
_LONGEST_ANSWER = 16 << 20
_PASSING_STATUS = frozenset({408, 409, 425, 429})  # and all of 5xx
_ABOUT_THE_QUESTION = frozenset({400, 413, 415, 422})
_NO_CREDIT = "insufficient_quota"  # comes as 429, and no waiting mends it
_NEVER_TAKEN = frozenset({"unsupported_parameter", "unsupported_value", _NO_CREDIT})


# The package builds its own models without checking them: a number for a text would pass.


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: Any = None  # these two are read apart: a text is not lost for their shape


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


class Transport:
    """Calls of one endpoint, all from one event loop.

    Args:
        url: base URL, up to and with its /v1.
        token: bearer token; it is cut out of everything that comes back.
        connections: kept at a time.

    Raises:
        ConfigError: SSL_CERT_FILE cannot be read.
    """

    def __init__(self, url: str, token: str | None, connections: int) -> None:
        base_url = url.rstrip("/")
        self._url = f"{base_url}/chat/completions"
        self._token = token
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=token or "none",
            # Empty and not None, for which the package looks into the environment.
            admin_api_key="",
            organization="",
            project="",
            webhook_secret="",
            max_retries=0,
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),  # the caller bounds the whole
            http_client=_http_client(connections),
        )
        self._headers = _headers(self._client, token)

    async def chat(self, body: Mapping[str, Any]) -> tuple[list[Reply], Usage | None]:
        """A reply a choice, at least one, and the tokens they took where the endpoint says.

        Raises:
            CallFailed: for whatever reason there is none.
        """
        response = await self._exchange(body)
        if response.status_code != 200:
            raise self._refused(response)
        try:
            completion = _Completion.model_validate_json(response.content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "body"
            raise self._failed(f"malformed answer: {where}: {first['msg']}", sent=True) from None
        replies = [self._reply(choice) for choice in completion.choices]
        return replies, _usage(completion.usage)

    async def close(self) -> None:
        await self._client.close()

    def late(self, seconds: float) -> CallFailed:
        """The failure of a call that was given up."""
        return self._failed(f"no answer within {seconds:.3g} s", sent=True)

    def _reply(self, choice: _Choice) -> Reply:
        return Reply(
            text=self._clean(choice.message.content) or "",
            finish_reason=self._clean(choice.finish_reason),
            refusal=self._clean(choice.message.refusal),
            first_token=_first_token(choice.logprobs),
        )

    async def _exchange(self, body: Mapping[str, Any]) -> httpx2.Response:
        """The answer as it came, whatever it says.

        No error is chained to what is raised: its text may be the token.
        """
        model, messages = body["model"], body["messages"]
        rest = {key: value for key, value in body.items() if key not in ("model", "messages")}
        try:
            answer = await self._client.chat.completions.with_raw_response.create(
                model=model, messages=messages, extra_body=rest, extra_headers=self._headers
            )
            return answer.http_response
        except openai.APIStatusError as error:
            return error.response
        except openai.APITimeoutError:  # no other step has a limit of its own
            raise self._failed(f"no connection within {_CONNECT_SECONDS:g} s") from None
        except (openai.APIConnectionError, OSError) as error:
            raise self._cut_off(error) from None
        except UnicodeEncodeError as error:  # half a character in the question
            raise self._failed(f"cannot be sent: {error}", retryable=False) from None
        except (httpx2.InvalidURL, ValueError) as error:  # a host name nobody can look up
            text = f"cannot be asked: {type(error).__name__}: {error}"
            raise self._failed(text, retryable=False, for_good=True) from None

    def _cut_off(self, error: Exception) -> CallFailed:
        """The package says the same of all that happens to a connection; its cause says what."""
        cause = error.__cause__ or error
        if isinstance(cause, httpx2.ConnectError):
            return self._failed(f"no connection: {cause or type(cause).__name__}")
        said = str(cause) or "the connection broke"
        return self._failed(f"{type(cause).__name__}: {said}", sent=True)

    def _refused(self, response: httpx2.Response) -> CallFailed:
        status = response.status_code
        code, message = _error_of(response.content)
        text = f"status {status}: {message or code or 'no reason given'}"
        if code in _NEVER_TAKEN:
            return self._failed(text, retryable=False, for_good=True)
        if status >= 500 or status in _PASSING_STATUS:
            return self._failed(text, retry_after=_retry_after(response.headers))
        about_the_question = status in _ABOUT_THE_QUESTION
        return self._failed(text, retryable=False, for_good=not about_the_question)

    def _failed(self, reason: str, **kind: Any) -> CallFailed:
        return CallFailed(legible(f"{self._url}: {reason}", self._token), **kind)

    def _clean(self, text: str | None) -> str | None:
        """What was said, without the token: a judge may be shown it and repeat it."""
        return without_secret(text, self._token) if text else text


class _BoundedAnswers(httpx2.AsyncHTTPTransport):
    """Reads every answer here, up to a bound: the package reads to the end, however far it is."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        content = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > _LONGEST_ANSWER:
                    raise httpx2.ReadError(f"more than {_LONGEST_ANSWER} bytes")
        finally:
            await response.aclose()
        headers = response.headers.copy()
        headers.pop("content-encoding", None)  # it is decoded
        return httpx2.Response(response.status_code, headers=headers, content=bytes(content))


def _http_client(connections: int) -> httpx2.AsyncClient:
    """No proxy, no .netrc, no redirection: the token goes where the configuration says."""
    limits = httpx2.Limits(max_connections=connections, keepalive_expiry=30)
    verify = trusted(os.environ.get("SSL_CERT_FILE"))
    transport = _BoundedAnswers(verify=verify, limits=limits, trust_env=False)
    return httpx2.AsyncClient(transport=transport, trust_env=False)


def _headers(client: openai.AsyncOpenAI, token: str | None) -> dict[str, str | openai.Omit]:
    """Ours, and the omission of all that the package would send of its own accord.

    That is what it found in OPENAI_CUSTOM_HEADERS, which no argument turns off, and its telemetry.
    In lower case, because the same name in another one would take ours away again.
    """
    return {
        **{name.lower(): openai.omit for name in client.default_headers},
        "x-stainless-retry-count": openai.omit,
        "accept": "application/json",
        "content-type": "application/json",
        "user-agent": client.user_agent,
        "authorization": f"Bearer {token}" if token else openai.omit,
    }


@cache
def trusted(path: str | None) -> ssl.SSLContext:
    """Whose certificates are trusted: those in SSL_CERT_FILE, or those of the system."""
    if not path:
        return httpx2.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ConfigError(f"SSL_CERT_FILE: {path} cannot be used: {error}") from error


def _error_of(content: bytes) -> tuple[str, str]:
    """Code and message of an error body; vLLM has no `error` around them, others a bare text."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return "", ""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return "", error if isinstance(error, str) else ""
    message = error.get("message") or error.get("detail") or ""
    return str(error.get("code") or error.get("type") or ""), str(message)


def _retry_after(headers: httpx2.Headers) -> float:
    """Seconds that Retry-After asks for, as a number or a date; 0 without one that can be read."""
    text = headers.get("retry-after", "").strip()
    try:
        if text.replace(".", "", 1).isdecimal():
            return float(text) if len(text) < 12 else 0.0
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _usage(found: Any) -> Usage | None:
    """Tokens of a call; None where they are not all there."""
    if not isinstance(found, dict):
        return None
    details = found.get("prompt_tokens_details")
    input_tokens, output_tokens = _count(found, "prompt_tokens"), _count(found, "completion_tokens")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
    if input_tokens is None or output_tokens is None:
        return None
    return Usage(input_tokens, output_tokens, cached or 0)


def _count(found: Mapping[str, Any], name: str) -> int | None:
    count = found.get(name)
    return count if type(count) is int and 0 <= count < 10**9 else None


def _first_token(logprobs: Any) -> tuple[tuple[str, float], ...] | None:
    """The likeliest first tokens, the chosen one among them; None where they are not there."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not content or not isinstance(content[0], dict):
        return None
    likeliest = content[0].get("top_logprobs")
    listed = [content[0], *likeliest] if isinstance(likeliest, list) else [content[0]]
    found: dict[tuple[str, float], None] = {}  # in order, and the chosen one once
    for one in listed:
        token, log_prob = (
            (one.get("token"), one.get("logprob")) if isinstance(one, dict) else (0, 0)
        )
        if isinstance(token, str) and isinstance(log_prob, int | float):
            found[token, float(log_prob)] = None
    return tuple(found) or None
