"""Whatever a reward of one's own does, it is the fault of that reward alone: in the trainer, and
in a service, which goes on answering."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest
import uvicorn

from atelier.config.sections.rewards import CustomRewardConfig
from atelier.errors import ConfigError
from atelier.legible import legible_error, legible_json
from atelier.rewards import Missing, Reward, RewardSet, Scores
from atelier.rewards.checks import Malformed, checked
from atelier.rewards.scorers.custom import FunctionScorer
from atelier.rewards.service.app import Limits, create_app
from atelier.rewards.service.details import plain_detail
from atelier.rewards.service.gate import Bounds
from atelier.rewards.service.pictures import to_items
from atelier.rewards.service.served import ServedReward
from tests.support.reward_services import Scripted, batch_of, bound_socket, service, wait_until

BATCH = batch_of([1, 2])


class Unspeakable:
    """Nothing about it can be had."""

    def __float__(self):
        raise RuntimeError("lazy")

    __repr__ = __str__ = __float__


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def cycle():
    found = {}
    found["again"] = [found, found]
    return found


def deep():
    found = []
    for _ in range(100_000):
        found = [found]
    return found


def raising(error):
    def score(*_):
        raise error

    return score


def of(function):
    config = CustomRewardConfig(function="tests.unit.test_rewards_misbehaving:of")
    return FunctionScorer("mine", lambda images, prompts, metadata: function(), config)


def in_process(scorer):
    with RewardSet([Reward(scorer)], deadline_seconds=20) as rewards:
        return rewards.collect([rewards.submit(BATCH)])


def in_service(*scorers):
    """The answer to one request for all of them, by name."""
    served = {str(i): ServedReward(one, 1, "0" * 64) for i, one in enumerate(scorers)}
    with serving(served) as url:
        body = {"items": [item.model_dump() for item in to_items(BATCH)]}
        answer = httpx.post(f"{url}/score", json=body, trust_env=False, timeout=30)
    assert answer.status_code == 200, answer.text[:500]
    return [answer.json()["rewards"][name]["results"] for name in served]


class serving:
    """Several rewards under uvicorn, ready."""

    def __init__(self, served):
        config = uvicorn.Config(create_app(served, Limits()), log_level="critical")
        self.server, self.listening = uvicorn.Server(config), bound_socket("127.0.0.1", 0)
        self.thread = threading.Thread(target=self.server.run, args=([self.listening],))
        self.thread.daemon = True

    def __enter__(self):
        self.thread.start()
        url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        wait_until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 200)
        return url

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(10)
        self.listening.close()


# Details ----------------------------------------------------------------------------------------

DETAILS = {
    "text": "text",
    "none": None,
    "surrogate": {"t": "a\ud800", "\udfff": 1},
    "cycle": cycle(),
    "deep": {"t": deep()},
    "long": {"t": "x" * 5_000_000, "l": [1] * 1_000_000},
    "odd": {b"\xff": b"\xff", 1: {2}, None: float("nan"), "big": 10**400, "bigger": 10**5000},
    "unspeakable": {"t": Unspeakable(), Unspeakable(): 1},
    "unspeakable itself": Unspeakable(),
}


def test_scores_stand_whatever_was_seen():
    scorers = [of(lambda d=d: [(0.5, d), 0.25]) for d in DETAILS.values()]
    for name, scorer, results in zip(DETAILS, scorers, in_service(*scorers), strict=True):
        assert in_process(scorer).values["mine"].tolist() == [0.5, 0.25], name
        assert [one["score"] for one in results] == [0.5, 0.25], name
        assert len(json.dumps(results[0]["detail"])) < 300_000, name


def test_what_was_seen_is_the_same_in_both():
    seen = [{"seen": "text"}, {}]
    scorer = of(lambda: [(0.5, "text"), (0.5, None)])
    assert in_process(scorer).details["mine"] == seen
    assert [one["detail"] for one in in_service(scorer)[0]] == seen


def test_details_of_every_kind_can_be_sent_and_kept():
    for detail in DETAILS.values():
        json.dumps(plain_detail({"d": detail}), allow_nan=False, ensure_ascii=False).encode()
        json.dumps(legible_json(detail), allow_nan=False, ensure_ascii=False).encode()
    assert plain_detail({"t": "a\nb\ud800"}) == {"t": "a\nb?"}


# Results ----------------------------------------------------------------------------------------

MALFORMED = {
    "none": None,
    "a number": 0.5,
    "too many": [0.5] * 3,
    "endless": itertools.repeat(0.5),
    "by key": {0: 0.5, 1: 0.5},
    "a text": "12",
    "a set": {1.0, 2.0},
}


@pytest.mark.parametrize("given", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_score_an_image_is_refused(given):
    with pytest.raises(Malformed, match="the scorer returned"):
        checked(Scores("a", given), 2)
    with pytest.raises(Malformed, match="Scores"):
        checked(given, 2)


def test_a_malformed_result_is_its_rewards_fault_and_not_asked_again():
    function = of(lambda: {0: 0.5, 1: 0.5})
    whole = of(lambda: [])
    whole.score = lambda batch: None if batch else Scores("mine", [])
    for scorer, results in zip((function, whole), in_service(function, whole), strict=True):
        table = in_process(scorer)
        assert not table.valid.any()
        assert "the scorer failed" in table.reasons[0]
        for one in results:
            assert one["error"]["type"] == "scorer_failed"
            assert not one["error"]["retryable"]


@pytest.mark.parametrize(
    "value", [10**400, 10**5000, Unspeakable(), object(), [1, 2]], ids=range(5)
)
def test_a_value_that_is_no_number_is_missing_for_its_image(value):
    found = checked(Scores("a", (one for one in [value, 1.0])), 2)
    assert isinstance(found.values[0], Missing)
    assert found.values[1] == 1.0


def test_a_reason_that_is_no_text_can_be_sent():
    reasons = [Missing("a\ud800\x1b[31m"), Missing(None, retryable="yes")]
    results = in_service(of(lambda: reasons))[0]
    assert [one["error"]["message"] for one in results] == ["a [31m", "None"]
    assert results[1]["error"]["retryable"] is True


def test_a_version_that_is_no_text_is_refused(monkeypatch):
    from atelier.rewards.scorers import custom

    scorer = of(lambda: [])
    scorer.version = 7
    with pytest.raises(ConfigError, match="version is 7"):
        custom._require_sound("rewards.custom.mine", scorer)


# Exceptions -------------------------------------------------------------------------------------

RAISED = [
    RuntimeError("\ud800 \x1b[31m \x00 " + "y" * 1_000_000),
    SystemExit(3),
    KeyboardInterrupt("a key"),
    StopIteration("stop"),
    GeneratorExit("exit"),
    asyncio.CancelledError("cancelled"),
    TimeoutError("my own database timed out"),
    MemoryError("none left"),
    UnspeakableError(),
]


def test_whatever_is_raised_is_a_failure_with_its_text_and_the_service_goes_on(caplog):
    """All in one request: one that failed takes no other with it. The log can be written."""
    scorers = [of(raising(error)) for error in RAISED]
    results = in_service(*scorers, of(lambda: [0.5, 0.5]))
    assert [one["score"] for one in results.pop()] == [0.5, 0.5]
    for error, scorer, (first, second) in zip(RAISED, scorers, results, strict=True):
        said = first["error"]
        assert first == second
        assert (said["type"], said["retryable"]) == ("scorer_failed", True)
        assert said["message"] == legible_error(error)
        assert len(said["message"]) < 1100
        assert said["message"] in in_process(scorer).reasons[0]
    caplog.text.encode()
    assert all(len(one.getMessage()) < 10_000 for one in caplog.records)
    assert "my own database timed out" in caplog.text


@pytest.mark.parametrize("error", RAISED[1:7], ids=lambda error: type(error).__name__)
def test_whatever_a_golden_sample_raises_is_told_and_asked_again(error, monkeypatch):
    monkeypatch.setattr("atelier.rewards.service.served.GOLDEN_RETRY_SECONDS", 0.05)
    served = ServedReward(Scripted(), 1, "0" * 64)
    right, calls = served.scorer.score, []

    def score(batch):
        calls.append(served.state.reason)
        if len(calls) == 1:
            raise error
        return right(batch)

    served.scorer.score = score
    asyncio.run(asyncio.wait_for(served.prove(), 10))
    assert served.state.state == "ready"
    assert calls == [None, legible_error(error)]


# The port ---------------------------------------------------------------------------------------

FORKS = """
import os, time

def forks(images, prompts, metadata):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return [(0.5, {"child": child})] * len(images)
"""


def test_a_forked_child_does_not_keep_the_port(tmp_path):
    (tmp_path / "forking.py").write_text(FORKS)
    config, port_file, child = tmp_path / "rewards.yaml", tmp_path / "port", None
    config.write_text("rewards: {custom: {forks: {function: 'forking:forks'}}}")
    arguments = ["--config", str(config), "--port", "0", "--port-file", str(port_file)]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "atelier.rewards.service", *arguments],
        env=os.environ | {"PYTHONPATH": paths},
    )
    try:
        wait_until(port_file.exists, 60)
        url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        wait_until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 200, 60)
        body = {"items": [item.model_dump() for item in to_items(BATCH)]}
        answer = httpx.post(f"{url}/score", json=body, trust_env=False, timeout=30).json()
        child = answer["rewards"]["forks"]["results"][0]["detail"]["child"]
        process.terminate()
        process.wait(30)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port_file.read_text())), timeout=5)
    finally:
        process.kill()
        process.wait(10)
        if child is not None:
            os.kill(child, signal.SIGKILL)


# Bodies that are not scored ---------------------------------------------------------------------


def sent(url, head, body=b""):
    """A request as it is; the status of its answer."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + b"\r\nHost: x\r\n" + body)
        return int(connection.makefile("rb").readline().split()[1])


def test_bodies_that_are_not_scored_are_small():
    chunks = b"Transfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 5
    waits = b"Content-Length: 100\r\n\r\nx"
    with service(limits=Limits(Bounds(1 << 20, 0.5, 2))) as url:
        for path in ("/drain?timeout=0", "/nothing", "/version"):
            assert sent(url, f"POST {path} HTTP/1.1", b"Content-Length: 4097\r\n\r\n") == 413
            assert sent(url, f"POST {path} HTTP/1.1", chunks) == 413
            assert sent(url, f"POST {path} HTTP/1.1", waits) == 408
        for path in ("/healthz", "/readyz"):
            assert sent(url, f"GET {path} HTTP/1.1", b"Content-Length: 4097\r\n\r\n") == 413
            # Not read: who sends a body slowly, or without end, is answered all the same.
            assert sent(url, f"GET {path} HTTP/1.1", waits) == 200
            assert sent(url, f"GET {path} HTTP/1.1", chunks) == 200


def test_bodies_that_are_not_scored_are_bounded_in_number():
    bounds = Bounds(body_seconds=20.0, other_bodies=2)
    with service(limits=Limits(bounds)) as url:
        host, port = url.removeprefix("http://").split(":")
        slow = [socket.create_connection((host, int(port)), timeout=10) for _ in range(2)]
        for connection in slow:
            connection.sendall(b"POST /drain HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx")
        wait_until(lambda: httpx.get(f"{url}/version", trust_env=False).status_code == 503)
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
        for connection in slow:
            connection.close()
        wait_until(lambda: httpx.get(f"{url}/version", trust_env=False).status_code == 200)
