"""The client of reward services: refusals for good, time limits, and what a service may say."""

import json
import threading
import time
from dataclasses import replace

import pytest
from PIL import Image

from atelier.errors import ConfigError
from atelier.event_loop import Closed, EventLoop
from atelier.legible import legible, without_secret
from tests.support.forks import in_a_fork
from tests.support.patience import FOR_EVER, PATIENCE, at_once
from tests.support.reward_services import BATCH, RIGHT, client, faulty, reasons, service


@pytest.fixture(scope="module")
def url():
    with service(workers=4) as found:
        yield found


def status(code, content=b"{}", **headers):
    return lambda handler, body: handler.answer(code, content, **headers)


def refusal(code, message, **headers):
    error = {"type": "x", "message": message, "retryable": False}
    return status(code, json.dumps({"error": error}).encode(), **headers)


# Who refuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [401, 403, 404, 307])
def test_a_service_that_refuses_rests_and_a_healthy_one_is_asked(url, code):
    with (
        faulty(url, lambda n: status(code)) as (bad, asked),
        client(bad, url) as scorer,
    ):
        for _ in range(6):
            assert list(scorer.score(BATCH).values) == RIGHT
    assert 1 <= len(asked) < 6


def test_where_every_service_refuses_the_reason_is_there_at_once(url):
    with (
        faulty(url, lambda n: status(404)) as (first, asked_first),
        faulty(url, lambda n: status(403)) as (second, asked_second),
        client(first, second, deadline=FOR_EVER) as scorer,
    ):
        for _ in range(2):
            with at_once():
                found = scorer.score(BATCH)
            assert "404 Not Found" in reasons(found)[0] or "403 Forbidden" in reasons(found)[0]
            assert not found.values[0].retryable
    assert len(asked_first) == len(asked_second) == 2


def test_beside_a_service_that_refuses_the_other_one_is_asked_until_it_is_well(url):
    with (
        faulty(url, lambda n: status(404)) as (refusing, asked_refusing),
        faulty(url, lambda n: status(503) if n < 4 else None) as (ill, _),
        client(refusing, ill, deadline=30.0) as scorer,
    ):
        assert list(scorer.score(BATCH).values) == RIGHT
    assert len(asked_refusing) == 1


def test_what_is_wrong_with_the_batch_is_asked_of_one_service_only(url):
    with (
        faulty(url, lambda n: status(422)) as (first, asked_first),
        faulty(url, lambda n: status(422)) as (second, asked_second),
        client(first, second, deadline=30.0) as scorer,
    ):
        assert "422" in reasons(scorer.score(BATCH))[0]
    assert len(asked_first) + len(asked_second) == 1


# In time ----------------------------------------------------------------------------------------


def drip_headers(handler, body):
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n")
    for number in range(10**6):  # until nobody listens
        handler.wfile.write(f"X-{number}: drip\r\n".encode())
        handler.wfile.flush()
        time.sleep(0.25)


def test_headers_that_drip_end_at_the_time_limit_of_the_request(url):
    with (
        faulty(url, lambda n: drip_headers) as (bad, asked),
        client(bad, deadline=4.0, timeout=1.0) as scorer,
        at_once(),
    ):
        assert "no answer in time" in reasons(scorer.score(BATCH))[0]
    assert len(asked) > 1


def test_headers_of_a_version_that_drip_end_before_the_deadline(url):
    with (
        faulty(url, lambda n: None, on_get=drip_headers) as (bad, _),
        client(bad, deadline=3.0, timeout=1.0) as scorer,
        at_once(),
    ):
        assert "time" in reasons(scorer.score(BATCH))[0]


def test_closing_ends_a_request_under_way_and_its_thread(url):
    arrived, over = threading.Event(), threading.Event()

    def hang(handler, body):
        arrived.set()
        over.wait(FOR_EVER)

    found = []
    with (
        faulty(url, lambda n: hang) as (bad, _),
        client(bad, deadline=60.0, timeout=60.0) as scorer,
    ):
        waiting = threading.Thread(target=lambda: found.append(scorer.score(BATCH)), daemon=True)
        waiting.start()
        assert arrived.wait(PATIENCE)
        assert "reward-requests" in thread_names()
        scorer.close()
        waiting.join(PATIENCE)
        over.set()
        assert not waiting.is_alive()
        assert "reward-requests" not in thread_names()
        assert "closed" in reasons(found[0])[0]
        assert "closed" in reasons(scorer.score(BATCH))[0]


def thread_names():
    return {thread.name for thread in threading.enumerate()}


def test_a_loop_that_is_closed_takes_nothing_more():
    async def nothing():
        return None

    loop = EventLoop("test")
    assert loop.run(nothing, 5.0) is None
    loop.close(nothing)
    loop.close(nothing)
    with pytest.raises(Closed):
        loop.run(nothing, 5.0)


def test_a_client_in_a_fork_says_so_and_ends(url):
    with client(url, deadline=60.0) as scorer:
        assert list(scorer.score(BATCH).values) == RIGHT

        def there():
            found = scorer.score(BATCH).values[0]
            scorer.close()
            return found

        said = in_a_fork(there)
        assert "forked" in said
        assert "retryable=False" in said
        assert list(scorer.score(BATCH).values) == RIGHT, "the parent's goes on"


@pytest.mark.parametrize("after", ["99999", "999999", "²", "tomorrow"])
def test_a_retry_after_that_cannot_be_kept_is_named_and_asked_until_the_deadline(url, after):
    sent = after.encode().decode("latin-1")  # which http.server encodes as
    with (
        faulty(url, lambda n: status(503, Retry_After=sent)) as (bad, asked),
        client(bad, deadline=3.0) as scorer,
    ):
        reason = reasons(scorer.score(BATCH))[0]
    assert f"Retry-After: {after}" in reason
    assert len(asked) > 2


# What it says -----------------------------------------------------------------------------------

FORGED = "you sent Bearer SECRETTOKEN\nStopped: fake line\x1b[2J\u202e" + "x" * 10000


@pytest.mark.parametrize(
    "fault",
    [
        refusal(422, FORGED),
        refusal(404, FORGED),
        refusal(503, "no", Retry_After="SECRETTOKEN\t" + "x" * 5000),
        status(200, json.dumps({FORGED: 1}).encode()),
    ],
)
def test_words_of_a_service_are_one_bounded_line_without_the_token(url, fault, caplog):
    with (
        faulty(url, lambda n: fault) as (bad, _),
        client(bad, deadline=1.0, token="SECRETTOKEN") as scorer,
    ):
        reason = reasons(scorer.score(BATCH))[0]
    for text in (reason, *(record.getMessage() for record in caplog.records)):
        assert "SECRETTOKEN" not in text
        assert text.isprintable()
        assert len(text) < 1200


def test_words_on_one_image_are_legible_too(url):
    def fault(handler, body):
        answer = json.loads(handler.forwarded(body))
        error = {"type": "x", "message": FORGED, "retryable": False}
        for one in answer["rewards"].values():
            one["results"][0].update(score=None, error=error)
        handler.answer(200, json.dumps(answer).encode())

    with faulty(url, lambda n: fault) as (bad, _), client(bad, token="SECRETTOKEN") as scorer:
        scores = scorer.score(BATCH)
    assert scores.values[0].reason == legible(f"x: {FORGED}", "SECRETTOKEN")
    assert scores.values[0].reason.startswith("x: you sent Bearer [token] Stopped: fake line [2J")
    assert list(scores.values[1:]) == RIGHT[1:]


HARD_TOKEN = "SEC'RET\\X/\"0123456789-abcdefghij"


def raw(head):
    """The answer's beginning as it is made of the header that bears the token."""

    def fault(handler, body):
        handler.wfile.write(head(handler.headers["Authorization"]).encode())

    return fault


ECHOES = {
    "status line": raw(lambda bearer: f"BAD {bearer}\r\n\r\n"),
    "cut header": raw(lambda bearer: f"HTTP/1.1 200 OK\r\n{'x' * 8180}: {bearer}" + "a" * 9000),
    "header": raw(lambda bearer: f"HTTP/1.1 200 OK\r\nX: {bearer}\x00\r\n\r\n"),
    "long header": raw(lambda bearer: f"HTTP/1.1 200 OK\r\nX: {bearer * 400}\r\n\r\n"),
    "body": raw(lambda bearer: f"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{bearer}{'x' * 99}"),
    "chunk": raw(
        lambda bearer: f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{bearer}\r\n"
    ),
    "repr": lambda handler, body: refusal(503, repr([HARD_TOKEN]))(handler, body),
    "JSON": lambda handler, body: refusal(503, json.dumps(json.dumps([HARD_TOKEN])))(handler, body),
    "cut": lambda handler, body: refusal(503, f"you said {HARD_TOKEN[:20]}")(handler, body),
}


@pytest.mark.parametrize("echo", ECHOES)
def test_no_form_or_piece_of_the_token_is_told(url, echo, caplog):
    with (
        faulty(url, lambda n: ECHOES[echo]) as (bad, _),
        client(bad, deadline=1.0, token=HARD_TOKEN) as scorer,
    ):
        told = [reasons(scorer.score(BATCH))[0], caplog.text]
    for at in range(len(HARD_TOKEN) - 7):
        assert not any(HARD_TOKEN[at : at + 8] in text for text in told), told
    assert not any("RET\\" in text for text in told), told


def test_what_a_scorer_saw_is_told_without_the_token(url):
    def fault(handler, body):
        answer = json.loads(handler.forwarded(body))
        for one in answer["rewards"].values():
            one["results"][0]["detail"] = {f"a {HARD_TOKEN}": [f"b {HARD_TOKEN}", 1, None]}
        handler.answer(200, json.dumps(answer).encode())

    with faulty(url, lambda n: fault) as (bad, _), client(bad, token=HARD_TOKEN) as scorer:
        scores = scorer.score(BATCH)
    assert scores.details[0] == {"a [token]": ["b [token]", 1, None]}
    assert list(scores.values) == RIGHT


def test_only_the_secret_is_cut_out():
    secret = "one two/three&four"
    assert without_secret("a secret, and one two five", secret) == "a secret, and one two five"
    assert without_secret("t=one+two%2Fthree%26four.", secret) == "t=[token]."
    assert without_secret("<one two/three&amp;four>", secret) == "<[token]>"
    assert without_secret("x one two/three y", secret) == "x [token] y"
    assert without_secret("short", "or") == "sh[token]t"


# Addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["http://☃..:1", "http://x:y", f"http://{'a' * 300}"])
def test_an_address_nobody_can_ask_is_a_config_error(bad):
    with (
        client(bad, deadline=2.0) as scorer,
        pytest.raises(ConfigError, match="cannot be asked") as raised,
    ):
        scorer.score(BATCH)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("unknown", ["http://\x00a", "http://a b:1"])
def test_a_name_that_is_not_found_is_missing_with_the_reason(unknown):
    with client(unknown, deadline=1.0) as scorer:
        assert "ClientConnectorDNSError: [Errno" in reasons(scorer.score(BATCH))[0]


# What cannot be sent ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata": {"a": object()}},
        {"metadata": {"a": b"\xff"}},
        {"metadata": {1: 2}},
        {"metadata": {"a": "\ud800"}},
        {"prompts": "\ud800"},
        {"prompts": None},
        {"images": Image.new("L", (0, 5))},
    ],
)
def test_what_can_never_be_sent_is_missing_with_its_place(url, changed):
    ((field, value),) = changed.items()
    column = [*getattr(BATCH, field)]
    column[2] = value
    with client(url, deadline=FOR_EVER) as scorer:
        with at_once():
            found = scorer.score(replace(BATCH, **{field: column}))
        assert reasons(found)[0].startswith("image 2 of the batch cannot be sent: ")
        assert not found.values[0].retryable
        assert all(len(reason) < 1200 and reason.isprintable() for reason in reasons(found))
        assert list(scorer.score(BATCH).values) == RIGHT, "the service is not blamed for it"
