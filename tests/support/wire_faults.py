"""What a service, or the network before it, can do to an answer.

Each fault takes a `Faulty` handler and the body of a POST /score, and answers in its way.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from tests.support.reward_services import NAME, Faulty

Fault = Callable[[Faulty, bytes], None]


def status(code: int, **headers: str) -> Fault:
    return lambda handler, body: handler.answer(code, b"{}", **headers)


def edited(change: Callable[[dict[str, Any], list[dict[str, Any]]], Any]) -> Fault:
    """The real answer, changed in place; or what `change` returns instead."""

    def fault(handler: Faulty, body: bytes) -> None:
        answer = json.loads(handler.forwarded(body))
        results = answer["rewards"][NAME]["results"]
        content = change(answer, results)
        sent = content if isinstance(content, bytes) else json.dumps(answer).encode()
        handler.answer(200, sent)

    return fault


def hang_up(handler: Faulty, body: bytes) -> None:
    handler.connection.close()


def hang(handler: Faulty, body: bytes) -> None:
    time.sleep(6)


def truncated(handler: Faulty, body: bytes) -> None:
    content = handler.forwarded(body)
    handler.answer(200, content[: len(content) // 2], length=len(content))
    handler.connection.close()


def cut_json(handler: Faulty, body: bytes) -> None:
    """Half an answer that says it is whole."""
    content = handler.forwarded(body)
    handler.answer(200, content[: len(content) // 2])


def reset(handler: Faulty, body: bytes) -> None:
    """Half an answer, and the connection is reset."""
    content = handler.forwarded(body)
    handler.answer(200, content[: len(content) // 2], length=len(content))
    time.sleep(0.05)  # so that the half arrives
    at_once = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    os.close(handler.connection.detach())  # the files made of it would keep it open


def drip(handler: Faulty, body: bytes) -> None:
    handler.answer(200, b"", length=1000)
    _one_by_one(handler, b" " * 60)


def drip_headers(handler: Faulty, body: bytes) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    _one_by_one(handler, b"x" * 60)


def _one_by_one(handler: Faulty, content: bytes) -> None:
    for at in range(len(content)):
        handler.wfile.write(content[at : at + 1])
        handler.wfile.flush()
        time.sleep(0.1)


def anothers(handler: Faulty, body: bytes) -> None:
    """The answer to the request before: a real one, with as many scores; its own the first time."""
    kind = type(handler)
    own = handler.forwarded(body)
    before, kind.before = getattr(kind, "before", own), own  # type: ignore[attr-defined]
    handler.answer(200, before)


FAULTS: dict[str, Fault] = {
    "500": status(500),
    "502": status(502),
    "503": status(503),
    "429": status(429),
    "hang up": hang_up,
    "hang": hang,
    "truncated": truncated,
    "cut JSON": cut_json,
    "reset": reset,
    "drip": drip,
    "drip headers": drip_headers,
    "no JSON": edited(lambda answer, results: b"<html>"),
    "empty": edited(lambda answer, results: b" "),
    "NaN": edited(lambda answer, results: results[1].update(score=float("nan"))),
    "infinity": edited(lambda answer, results: results[1].update(score=float("inf"))),
    "text": edited(lambda answer, results: results[1].update(score="0.5")),
    "neither": edited(lambda answer, results: results[1].update(score=None)),
    "too few": edited(lambda answer, results: results.pop()),
    "too many": edited(lambda answer, results: results.append(results[0])),
    "out of range": edited(lambda answer, results: results[1].update(score=-1.0)),
    "another's answer": edited(lambda answer, results: answer.update(request_id="other")),
    "another scorer": edited(
        lambda answer, results: answer["rewards"][NAME]["identity"].update(version="2")
    ),
    "another reward": edited(lambda answer, results: answer.update(rewards={})),
    "retryable": edited(
        lambda answer, results: results[1].update(
            score=None, error={"type": "x", "message": "y", "retryable": True}
        )
    ),
}
