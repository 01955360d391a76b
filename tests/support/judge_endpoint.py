"""An OpenAI-compatible endpoint for tests, in this process: it does what a test says."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse


@dataclass
class Call:
    """One call. `nth`: how often this prompt was asked, this time included."""

    body: dict[str, Any]
    headers: dict[str, str]
    nth: int

    @property
    def prompt(self) -> str:
        """The text of the question: the last part of its message."""
        asked = next(one for one in self.body["messages"] if one["role"] == "user")
        return asked["content"][-1]["text"]

    @property
    def is_repair(self) -> bool:
        """Whether an earlier answer is in it."""
        return any(one["role"] == "assistant" for one in self.body["messages"])


Script = Callable[[Call], Awaitable[Response]]


@dataclass
class FakeJudge:
    """The endpoint: its address, what it does, and what it was asked."""

    url: str = ""
    script: Script | None = None
    calls: list[Call] = field(default_factory=list)

    def acts(self, script: Script) -> None:
        """Forget what was, and do this from now on."""
        self.script, self.calls = script, []


def said(
    text: str | None,
    finish_reason: str | None = "stop",
    refusal: str | None = None,
    first_token: list[tuple[str, float]] | None = None,
    usage: tuple[int, int, int] | None = (100, 10, 0),
) -> Response:
    """A chat completion. `usage`: input, output and cached tokens."""
    choice = choice_of(text, finish_reason, refusal)
    if first_token is not None:
        listed = [{"token": token, "logprob": value, "bytes": None} for token, value in first_token]
        choice["logprobs"] = {"content": [{**listed[0], "top_logprobs": listed}]}
    return said_in_choices([choice], usage)


def choice_of(
    text: str | None, finish_reason: str | None = "stop", refusal: str | None = None
) -> dict[str, Any]:
    """One of a chat completion's choices."""
    return {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": refusal},
        "finish_reason": finish_reason,
        "logprobs": None,
    }


def said_in_choices(
    choices: list[dict[str, Any]], usage: tuple[int, int, int] | None = (100, 10, 0)
) -> Response:
    """A chat completion of several choices."""
    numbered = [{**one, "index": index} for index, one in enumerate(choices)]
    body: dict[str, Any] = {"id": "1", "object": "chat.completion", "choices": numbered}
    if usage is not None:
        body["usage"] = {
            "prompt_tokens": usage[0],
            "completion_tokens": usage[1],
            "total_tokens": usage[0] + usage[1],
            "prompt_tokens_details": {"cached_tokens": usage[2]},
        }
    return JSONResponse(body)


def error(status: int, message: str = "no", code: str | None = None, **headers: str) -> Response:
    """A refusal as OpenAI words it."""
    content = {"error": {"message": message, "type": "error", "code": code}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(content, status, headers=named)


def dropped() -> Response:
    """Headers and half a body, then the connection ends."""

    async def parts() -> Any:
        yield b'{"choices": ['
        raise ConnectionAbortedError

    return StreamingResponse(parts(), headers={"content-length": "1000"})


def dripping(seconds: float) -> Response:
    """A body that comes byte by byte, for as long."""

    async def parts() -> Any:
        for _ in range(int(seconds / 0.05)):
            yield b" "
            await asyncio.sleep(0.05)

    return StreamingResponse(parts())


@contextmanager
def judge_endpoint() -> Iterator[FakeJudge]:
    """The endpoint, listening on a free port."""
    judge = FakeJudge()
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        call = Call(await request.json(), dict(request.headers), 1)
        call.nth += sum(other.prompt == call.prompt for other in judge.calls)
        judge.calls.append(call)
        assert judge.script is not None
        return await judge.script(call)

    config = uvicorn.Config(
        app, log_level="critical", access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    judge.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield judge
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
