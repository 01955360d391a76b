"""Sleeping and waking, on a server that counts."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from atelier.config.sections.judge import JudgeConfig
from atelier.judge import Answer, Question, YesNoForm
from atelier.judge import sleep as sleep_module
from atelier.judge.sleep import Sleeper
from atelier.rewards.scorers.judges import SharedJudge

QUESTION = Question("q", YesNoForm())


@pytest.fixture
def server():
    """Answers with the statuses it is given, the last one for ever, and remembers what it heard."""

    class Handler(BaseHTTPRequestHandler):
        heard: list[tuple[str, str | None]] = []  # noqa: RUF012
        statuses: list[int] = [200]  # noqa: RUF012

        def do_POST(self):
            self.heard.append((self.path, self.headers.get("Authorization")))
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            body = json.dumps({}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    Handler.url = f"http://127.0.0.1:{listening.server_port}/v1"
    yield Handler
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def judge(server, monkeypatch):
    """A judge that answers without a server, and sleeps with one."""
    monkeypatch.setenv("JUDGE_TOKEN", "sesam")
    config = JudgeConfig.model_validate(
        {
            "model": "m",
            "placement": "remote",
            "urls": [server.url],
            "token_env": "JUDGE_TOKEN",
            "vllm": {"sleep": True},
        }
    )
    found = SharedJudge(config, "judges.j")

    class Answers:
        def ask(self, questions):
            return [Answer({"p_yes": 1.0}, (1.0,))] * len(questions)

        def close(self):
            pass

    monkeypatch.setattr("atelier.rewards.scorers.judges._open", lambda *_: Answers())
    return found


def test_it_sleeps_once_a_step_and_wakes_with_the_next_question(judge, server):
    judge.rest(is_main=True)
    assert not server.heard, "nobody has asked it anything"
    judge.ask([QUESTION])
    assert not server.heard, "it was awake"
    judge.rest(is_main=True)
    judge.ask([QUESTION])
    judge.ask([QUESTION])
    own = "Bearer sesam"
    assert server.heard == [("/sleep?level=1", own), ("/wake_up", own)]


def test_other_ranks_do_not_send_it_to_sleep_and_still_wake_it(judge, server):
    judge.ask([QUESTION])
    judge.rest(is_main=False)
    assert not server.heard
    judge.ask([QUESTION])
    assert [path for path, _ in server.heard] == ["/wake_up"]


def test_waking_is_tried_again(judge, server, monkeypatch):
    monkeypatch.setattr(sleep_module, "_FIRST_PAUSE", 0.01)
    judge.ask([QUESTION])
    judge.rest(is_main=True)
    server.statuses[:] = [500, 500, 200]
    assert judge.ask([QUESTION])[0].missing is None
    assert [path for path, _ in server.heard] == ["/sleep?level=1"] + 3 * ["/wake_up"]


def test_one_that_does_not_wake_gives_no_answer_and_may_later(judge, server, monkeypatch):
    monkeypatch.setattr(sleep_module, "_FIRST_PAUSE", 0.01)
    judge.config = judge.config.model_copy(update={"deadline": 0.2})
    judge.ask([QUESTION])
    judge.rest(is_main=True)
    server.statuses[:] = [503]
    (answer,) = judge.ask([QUESTION])
    assert answer.retryable
    assert "could not be woken: it says 503" in answer.missing
    server.statuses[:] = [200]
    assert judge.ask([QUESTION])[0].missing is None


def test_one_that_cannot_be_reached_keeps_its_memory_and_the_run_goes_on(caplog, free_port):
    Sleeper([f"http://127.0.0.1:{free_port}/v1"], None).sleep()
    assert "was not sent to sleep: ConnectError" in caplog.text


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
