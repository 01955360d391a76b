"""A server that is away for a while is asked again; one that refuses is believed."""

from __future__ import annotations

import httpx
import pytest

from tasks import server

REQUEST = httpx.Request("GET", "http://127.0.0.1:1/api")


def refusal(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError(
        str(status), request=REQUEST, response=httpx.Response(status, request=REQUEST)
    )


def test_a_server_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "ASK_AGAIN_SECONDS", 0.0)
    errors = [httpx.ConnectError("refused"), httpx.ReadTimeout("late"), refusal(503)]

    def question() -> int:
        if errors:
            raise errors.pop(0)
        return 5

    assert server.until_answered(question) == 5
    assert not errors


def test_a_refusal_is_an_answer():
    def question() -> int:
        raise refusal(404)

    with pytest.raises(httpx.HTTPStatusError):
        server.until_answered(question)
