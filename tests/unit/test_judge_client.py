"""The judge's client: whatever an endpoint does, answers are right or missing, and in order."""

import asyncio
import base64
import io
import json
import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import log
from typing import Annotated, Literal

import pytest
from fastapi.responses import Response
from PIL import Image
from pydantic import BaseModel, Field

from atelier.config.sections.judge import AnswerCacheConfig, BudgetConfig, JudgeConfig, PricesConfig
from atelier.errors import ConfigError, Stopped
from atelier.judge import (
    Answer,
    DimensionsForm,
    JsonForm,
    JudgeClient,
    NumberForm,
    Question,
    VerdictForm,
    YesNoForm,
)
from tests.support.judge_endpoint import dripping, dropped, error, judge_endpoint, said
from tests.support.patience import at_once

TOKEN = "sk-ThisTokenMustNotBeWritten0123456789"


class Score(BaseModel):
    reason: str = "none"
    score: Annotated[int, Field(ge=0, le=10)]


class Graded(BaseModel):
    following: Literal["0", "5", "10"]
    preserving: Literal["0", "5", "10"]
    reason: str


FORM = JsonForm(Score)


@pytest.fixture(scope="module")
def endpoint():
    with judge_endpoint() as judge:
        yield judge


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("atelier.judge.client._FIRST_PAUSE", 0.02)


@contextmanager
def client(endpoint, trace=None, trace_share=1.0, **values):
    config = JudgeConfig(
        **{
            "placement": "remote",
            "urls": [endpoint.url],
            "model": "m",
            "deadline": 30,
            "timeout": 20,
            **values,
        }
    )
    with JudgeClient(config, trace=trace, trace_share=trace_share) as judge:
        yield judge


def question(number, form=FORM, **kind):
    """A question whose right answer is its number."""
    return Question(f"number {number}", form, **kind)


def right(call):
    return said(json.dumps({"score": int(call.prompt.split()[1])}))


def scores(answers):
    return [answer.numbers.get("score") for answer in answers]


def always(make):
    async def script(call):
        return make(call)

    return script


def first(times, make):
    """Do something else the first times each prompt is asked, then answer right."""

    async def script(call):
        made = make(call) if call.nth <= times else right(call)
        return await made if asyncio.iscoroutine(made) else made

    return script


# Order, concurrency, faults ---------------------------------------------------------------------


def test_answers_are_in_order_whatever_the_latency(endpoint):
    under_way, most = set(), []

    async def script(call):
        under_way.add(call.prompt)
        most.append(len(under_way))
        await asyncio.sleep(random.random() * 0.05)
        under_way.discard(call.prompt)
        return right(call)

    endpoint.acts(script)
    with client(endpoint, concurrency=5) as judge:
        answers = judge.ask([question(n % 11) for n in range(44)])
    assert scores(answers) == [n % 11 for n in range(44)]
    assert 1 < max(most) <= 5


def hanging(call):
    async def hang():
        await asyncio.sleep(30)
        return right(call)

    return hang()


PASSING = {
    "500": lambda call: error(500),
    "503": lambda call: error(503, "overloaded"),
    "408": lambda call: error(408),
    "429": lambda call: error(429, "slow down", Retry_After="0"),
    "hang": hanging,
    "drip": lambda call: dripping(30),
    "dropped": lambda call: dropped(),
    "truncated": lambda call: Response(right(call).body[:40], media_type="application/json"),
    "empty": lambda call: Response(b""),
    "html": lambda call: Response(b"<html>Bad gateway</html>"),
    "array": lambda call: Response(b"[]"),
    "no choices": lambda call: Response(b'{"choices": []}'),
    "other shape": lambda call: Response(b'{"choices": [{"text": "{\\"score\\": 3}"}]}'),
    "an error in a 200": lambda call: Response(b'{"error": {"message": "no"}}'),
    "content of another type": lambda call: Response(b'{"choices": [{"message": {"content": 3}}]}'),
}


WAITS = ("hang", "drip")


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_changes_no_answer(endpoint, fault):
    endpoint.acts(first(2, PASSING[fault]))
    waits = fault in WAITS
    with client(endpoint, timeout=0.5 if waits else 20) as judge:
        answers = judge.ask([question(n) for n in range(4)])
    assert scores(answers) == [0, 1, 2, 3]
    assert len(endpoint.calls) == 12 or waits  # then a busy machine may need more


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_stays_is_missing_and_never_a_number(endpoint, fault):
    endpoint.acts(always(right))
    with client(endpoint, timeout=1.5 if fault in WAITS else 20, retries=1) as judge:
        judge.ask([question(9)])

        async def script(call):
            made = PASSING[fault](call) if call.prompt == "number 1" else right(call)
            return await made if asyncio.iscoroutine(made) else made

        endpoint.acts(script)
        answers = judge.ask([question(n) for n in range(3)])
    assert scores(answers) == [0, None, 2]
    assert answers[1].missing
    assert answers[1].retryable
    assert answers[1].values == ()
    assert sum(call.prompt == "number 1" for call in endpoint.calls) == 2


def test_nobody_there_is_missing_with_the_reason():
    config = JudgeConfig(placement="remote", urls=["http://127.0.0.1:9/v1"], model="m", retries=1)
    with JudgeClient(config) as judge:
        (answer,) = judge.ask([question(1)])
    assert "no connection" in answer.missing
    assert answer.retryable


def test_retry_after_is_kept(endpoint):
    endpoint.acts(first(1, lambda call: error(429, Retry_After="1")))
    with client(endpoint) as judge:
        begun = time.monotonic()
        assert scores(judge.ask([question(4)])) == [4]
        assert time.monotonic() - begun >= 1.0


@pytest.mark.parametrize("after", ["900", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_retry_after_beyond_the_deadline_is_missing_at_once(endpoint, after):
    endpoint.acts(first(1, lambda call: error(429, Retry_After=after)))
    with client(endpoint, deadline=600, concurrency=1) as judge, at_once():
        (answer,) = judge.ask([question(4)])
    assert "no time to wait" in answer.missing
    assert len(endpoint.calls) == 1


@pytest.mark.parametrize("after", ["tomorrow", "-5", "1e9", "\u00b2".encode().decode("latin-1")])
def test_a_retry_after_that_means_nothing_is_none(endpoint, after):
    endpoint.acts(first(1, lambda call: error(503, Retry_After=after)))
    with client(endpoint) as judge:
        assert scores(judge.ask([question(4)])) == [4]


def test_at_the_deadline_the_rest_is_missing(endpoint):
    endpoint.acts(
        first(99, lambda call: hanging(call) if call.prompt == "number 1" else right(call))
    )
    with client(endpoint, deadline=3.0, timeout=3.0) as judge:
        answers = judge.ask([question(n) for n in range(3)])
    assert scores(answers) == [0, None, 2]
    assert "deadline of 3 s" in answers[1].missing


def test_closing_ends_what_is_under_way(endpoint):
    async def hang(call):
        await asyncio.sleep(10)
        return right(call)

    endpoint.acts(hang)
    with client(endpoint) as judge, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(judge.ask, [question(1), question(2)])
        while len(endpoint.calls) < 2:
            time.sleep(0.01)
        judge.close()
        assert all("closed" in answer.missing for answer in asked.result(10))
        assert "closed" in judge.ask([question(3)])[0].missing
        assert judge.ask([]) == []


def test_many_threads_share_a_client(endpoint):
    endpoint.acts(always(right))
    with client(endpoint) as judge, ThreadPoolExecutor(6) as pool:
        asked = [[question((n + k) % 11) for n in range(5)] for k in range(12)]
        for k, answers in enumerate(pool.map(judge.ask, asked)):
            assert scores(answers) == [(n + k) % 11 for n in range(5)]


# What can never work ----------------------------------------------------------------------------

NEVER = {
    "401": lambda call: error(401, f"Incorrect API key {TOKEN}"),
    "403": lambda call: error(403),
    "404": lambda call: error(404, "The model `m` does not exist."),
    "redirection": lambda call: Response(status_code=307, headers={"location": "/elsewhere"}),
    "parameter": lambda call: error(400, "max_tokens is not supported", "unsupported_parameter"),
    "credit": lambda call: error(429, "You exceeded your quota", "insufficient_quota"),
}


@pytest.mark.parametrize("fault", NEVER)
def test_a_refusal_of_everything_is_raised_at_the_first_look(endpoint, fault):
    endpoint.acts(always(NEVER[fault]))
    with client(endpoint, concurrency=2) as judge:
        with pytest.raises(ConfigError, match="judge: http://127") as raised:
            judge.ask([question(n) for n in range(10)])
        assert len(endpoint.calls) <= 2
        assert "'m'" in str(raised.value)
        endpoint.acts(always(right))  # mended
        assert scores(judge.ask([question(4)])) == [4]


@pytest.mark.parametrize("fault", NEVER)
def test_a_refusal_of_everything_later_on_is_missing_at_once(endpoint, fault):
    endpoint.acts(always(right))
    with client(endpoint) as judge:
        judge.ask([question(1)])
        endpoint.acts(always(NEVER[fault]))
        (answer,) = judge.ask([question(4)])
    assert answer.missing
    assert answer.numbers == {}
    assert len(endpoint.calls) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_of_one_question_is_its_own(endpoint, status):
    endpoint.acts(
        always(lambda call: error(status, "too big") if call.prompt == "number 1" else right(call))
    )
    with client(endpoint) as judge:
        answers = judge.ask([question(n) for n in range(3)])
    assert scores(answers) == [0, None, 2]
    assert f"status {status}: too big" in answers[1].missing
    assert not answers[1].retryable
    assert len(endpoint.calls) == 3


def test_a_configuration_that_contradicts_itself_is_refused():
    with pytest.raises(ConfigError, match=r"critic\.urls: .*critic\.timeout: "):
        JudgeClient(
            JudgeConfig(placement="remote", urls=["http:/x"], model="m", timeout=9, deadline=5),
            key="critic",
        )


@pytest.mark.parametrize("url", ["http://x:y/v1", "ftp://host/v1", "http://user:pass@host/v1", "x"])
def test_a_malformed_address_is_refused(url):
    with pytest.raises(ConfigError, match=r"judge\.urls"):
        JudgeClient(JudgeConfig(placement="remote", urls=[url], model="m"))


# Forms, and one repair --------------------------------------------------------------------------


def test_json_comes_by_its_schema_and_out_of_a_fence(endpoint):
    endpoint.acts(always(lambda call: said(f'Sure:\n```json\n{{"score": {call.prompt[-1]}}}\n```')))
    with client(endpoint) as judge:
        assert scores(judge.ask([question(7)])) == [7]
    schema = endpoint.calls[0].body["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"]["required"] == ["reason", "score"]
    assert schema["schema"]["additionalProperties"] is False
    assert "default" not in schema["schema"]["properties"]["reason"]


@pytest.mark.parametrize(
    ("structured", "sent"), [("json_object", {"type": "json_object"}), ("none", None)]
)
def test_how_json_is_asked_for_can_be_set(endpoint, structured, sent):
    endpoint.acts(always(right))
    with client(endpoint, structured=structured) as judge:
        judge.ask([question(7)])
    assert endpoint.calls[0].body.get("response_format") == sent


@pytest.mark.parametrize(
    ("form", "text", "numbers"),
    [
        (NumberForm("Final Score", 1, 5), "**Final Score:** 4.5", {"score": 4.5}),
        (DimensionsForm(["A Score"], 1, 5), "A Score (1-5): 4", {"A Score": 4.0}),
        (VerdictForm(), "<answer>Image 1 is better</answer>", {"first_is_better": 1.0}),
        (VerdictForm(), "<answer>Image 2 is better</answer>", {"first_is_better": 0.0}),
        (
            JsonForm(Graded),
            '{"following": "10", "preserving": "0", "reason": "5"}',
            {"following": 10.0, "preserving": 0.0},
        ),
    ],
)
def test_every_form_has_its_numbers(endpoint, form, text, numbers):
    endpoint.acts(always(lambda call: said(text)))
    with client(endpoint) as judge:
        (answer,) = judge.ask([Question("?", form)])
    assert answer.numbers == numbers
    assert answer.missing is None
    assert answer.replies[0].text == text


def test_yes_or_no_is_read_from_log_probabilities(endpoint):
    pairs = [("Yes", log(0.6)), (" no", log(0.2)), ("The", -9999.0)]
    endpoint.acts(always(lambda call: said("Yes", "length", first_token=pairs)))
    with client(endpoint, parameters={"max_tokens": 1}, top_logprobs=5) as judge:
        (answer,) = judge.ask([Question("?", YesNoForm())])
    assert answer.numbers == {"p_yes": pytest.approx(0.75)}
    body = endpoint.calls[0].body
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 5, 1)


def test_without_log_probabilities_there_is_no_answer(endpoint):
    endpoint.acts(always(lambda call: said("Yes")))
    with client(endpoint) as judge:
        (answer,) = judge.ask([Question("?", YesNoForm())])
    assert "sends none" in answer.missing
    assert len(endpoint.calls) == 1


def test_what_cannot_be_read_goes_back_once_with_the_reason(endpoint):
    async def script(call):
        return right(call) if call.is_repair else said('{"score": "four"}')

    endpoint.acts(script)
    with client(endpoint) as judge:
        assert scores(judge.ask([question(4)])) == [4]
    asked, earlier, complaint = endpoint.calls[1].body["messages"]
    assert asked == endpoint.calls[0].body["messages"][0]
    assert earlier == {"role": "assistant", "content": '{"score": "four"}'}
    assert "score: Input should be a valid integer" in complaint["content"]


def test_what_cannot_be_read_twice_is_missing(endpoint):
    endpoint.acts(always(lambda call: said("I would say four.")))
    with client(endpoint) as judge:
        (answer,) = judge.ask([question(4)])
    assert len(endpoint.calls) == 2
    assert answer.missing.count("no JSON object") == 2
    assert answer.replies[0].text == "I would say four."


@pytest.mark.parametrize(
    ("finish_reason", "refusal", "reason"),
    [
        ("length", None, "token limit"),
        ("content_filter", None, "content_filter"),
        ("stop", "I cannot judge people.", "the judge refused: I cannot judge people."),
    ],
)
def test_refused_and_cut_off_are_missing_and_kept(endpoint, finish_reason, refusal, reason):
    endpoint.acts(always(lambda call: said('{"score": 4}', finish_reason, refusal)))
    with client(endpoint) as judge:
        (answer,) = judge.ask([question(4)])
    assert reason in answer.missing
    assert answer.replies[0].finish_reason == finish_reason
    assert answer.replies[0].refusal == refusal
    assert len(endpoint.calls) == 1


# What is sent -----------------------------------------------------------------------------------


def test_nothing_is_sent_that_is_not_configured(endpoint, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/from-the-environment")
    endpoint.acts(always(right))
    with client(endpoint, structured="none") as judge:
        assert scores(judge.ask([question(1)])) == [1]
    (call,) = endpoint.calls
    assert call.body.keys() == {"model", "messages"}
    assert "authorization" not in call.headers
    assert not any("from-the-environment" in value for value in call.headers.values())


def test_parameters_are_passed_through(endpoint):
    endpoint.acts(always(right))
    parameters = {"temperature": 0, "max_completion_tokens": 9, "chat_template_kwargs": {"a": [1]}}
    with client(endpoint, parameters=parameters) as judge:
        judge.ask([question(1)])
    assert {key: endpoint.calls[0].body[key] for key in parameters} == parameters


def test_images_come_first_in_their_order_as_png(endpoint):
    endpoint.acts(always(right))
    noise = Image.effect_noise((40, 20), 90).convert("RGB")
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    with client(endpoint, longest_side=20) as judge:
        judge.ask([question(1, images=[noise, clear], system="be strict")])
    system, user = endpoint.calls[0].body["messages"]
    assert system == {"role": "system", "content": "be strict"}
    assert [part["type"] for part in user["content"]] == ["image_url", "image_url", "text"]
    sent = []
    for part in user["content"][:2]:
        head, _, content = part["image_url"]["url"].partition(",")
        assert head == "data:image/png;base64"
        sent.append(Image.open(io.BytesIO(base64.b64decode(content))))
    assert [(one.size, one.mode, one.format) for one in sent] == [
        ((20, 10), "RGB", "PNG"),
        ((8, 8), "RGB", "PNG"),
    ]
    assert sent[1].getpixel((3, 3)) == (255, 255, 255)


def test_an_image_within_the_bound_is_sent_as_it_is(endpoint):
    endpoint.acts(always(right))
    noise = Image.effect_noise((40, 20), 90).convert("RGB")
    with client(endpoint, longest_side=40) as judge:
        judge.ask([question(1, images=[noise])])
    uri = endpoint.calls[0].body["messages"][0]["content"][0]["image_url"]["url"]
    sent = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert sent.tobytes() == noise.tobytes()


def test_a_broken_image_is_missing_and_the_others_are_not(endpoint, tmp_path):
    endpoint.acts(always(right))
    Image.effect_noise((64, 64), 90).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:1000])
    with client(endpoint) as judge, Image.open(tmp_path / "a.png") as image:
        broken = question(1, images=[image])
        answers = judge.ask([question(0), broken, question(2)])
    assert scores(answers) == [0, None, 2]
    assert "an image cannot be used" in answers[1].missing


# Rates ------------------------------------------------------------------------------------------


def test_calls_a_minute_are_spaced(endpoint):
    endpoint.acts(always(right))
    with client(endpoint, requests_per_minute=600) as judge:
        begun = time.monotonic()
        judge.ask([question(n) for n in range(6)])
        assert time.monotonic() - begun >= 0.5


def test_tokens_a_minute_are_kept_within_their_bound(endpoint):
    # The first call takes 100 tokens more than a minute has, and 100 come back each second.
    endpoint.acts(always(lambda call: said('{"score": 1}', usage=(6000, 100, 0))))
    with client(endpoint, tokens_per_minute=6000) as judge:
        begun = time.monotonic()
        judge.ask([question(1)])
        judge.ask([question(1)])
        assert time.monotonic() - begun >= 1.0


# Measurements and cache -------------------------------------------------------------------------


def test_measurements_are_averaged(endpoint):
    endpoint.acts(always(lambda call: said(f'{{"score": {call.nth}}}')))
    with client(endpoint, measurements=4) as judge:
        (answer,) = judge.ask([question(0)])
    assert answer.numbers == {"score": 2.5}
    assert (answer.measured, answer.asked) == (4, 4)
    assert sorted(value.score for value in answer.values) == [1, 2, 3, 4]


@pytest.mark.parametrize(("share", "is_missing"), [(0.5, False), (0.75, True)])
def test_too_few_measurements_are_missing(endpoint, share, is_missing):
    def make(call):
        return said('{"score": 4}') if call.nth % 2 else said(None, refusal="no")

    endpoint.acts(always(make))
    with client(endpoint, measurements=4, min_measured_share=share) as judge:
        (answer,) = judge.ask([question(0)])
    assert (answer.measured, answer.asked) == (2, 4)
    assert len(answer.replies) == 4
    if is_missing:
        assert "2 of 4 measurements" in answer.missing
        assert answer.numbers == {}
    else:
        assert answer.numbers == {"score": 4.0}


def test_the_same_question_is_asked_once(endpoint, tmp_path):
    cache = AnswerCacheConfig(folder=str(tmp_path))
    image = Image.effect_noise((16, 16), 50)
    endpoint.acts(always(lambda call: said(f'{{"score": {call.nth}}}')))
    with client(endpoint, cache=cache, measurements=3) as judge:
        first_time = judge.ask([question(0, images=[image])])[0]
        assert len(endpoint.calls) == 3
    with client(endpoint, cache=cache, measurements=3) as judge:
        again = judge.ask([question(0, images=[image.copy()])])[0]
        assert len(endpoint.calls) == 3
    assert again == first_time
    others = [
        (question(0, images=[image.point(lambda value: value ^ 1)]), {}),
        (question(0, images=[image, image]), {}),
        (question(0, images=[image], system="be strict"), {}),
        (question(1, images=[image]), {}),
        (question(0, images=[image]), {"model": "other"}),
        (question(0, images=[image]), {"parameters": {"temperature": 0}}),
        (question(0, images=[image]), {"structured": "none"}),
        (question(0, images=[image]), {"longest_side": 8}),
    ]
    for other, values in others:
        before = len(endpoint.calls)
        with client(endpoint, cache=cache, **values) as judge:
            judge.ask([other])
        assert len(endpoint.calls) == before + 1, values


def test_failures_are_not_kept_and_repaired_answers_are(endpoint, tmp_path):
    cache = AnswerCacheConfig(folder=str(tmp_path))
    endpoint.acts(always(lambda call: said("four")))
    with client(endpoint, cache=cache) as judge:
        assert judge.ask([question(4)])[0].missing
        assert not list(tmp_path.rglob("*.json"))
        endpoint.acts(always(lambda call: right(call) if call.is_repair else said("four")))
        assert scores(judge.ask([question(4)])) == [4]
        assert scores(judge.ask([question(4)])) == [4]
    assert len(endpoint.calls) == 2


# Budget -----------------------------------------------------------------------------------------

PRICES = PricesConfig(input=5.0, output=50.0)  # a call is 0.001


def test_a_spent_budget_stops_and_keeps_what_was_paid_for(endpoint, tmp_path):
    endpoint.acts(always(right))
    values = {
        "ledger": str(tmp_path / "ledger.jsonl"),
        "cache": AnswerCacheConfig(folder=str(tmp_path / "answers")),
    }
    questions = [question(n) for n in range(8)]
    with (
        client(endpoint, budget=BudgetConfig(calls=5), **values) as judge,
        pytest.raises(Stopped, match=r"judge\.budget\.calls: 5 of 5") as raised,
    ):
        judge.ask(questions)
    assert raised.value.exit_code == 75
    assert len(endpoint.calls) == 5
    with client(endpoint, budget=BudgetConfig(calls=8), **values) as judge:
        assert scores(judge.ask(questions)) == list(range(8))
        assert judge.ledger.spent().calls == 8
    assert len(endpoint.calls) == 8


def test_a_spent_budget_can_be_missing_answers(endpoint, tmp_path):
    endpoint.acts(always(right))
    budget = BudgetConfig(money=0.0035, exceeded="missing")
    ledger = str(tmp_path / "ledger.jsonl")
    with client(endpoint, budget=budget, prices=PRICES, ledger=ledger, concurrency=8) as judge:
        answers = judge.ask([question(n) for n in range(8)])
        spent = judge.ledger.spent()
    assert spent.calls == len(endpoint.calls)
    assert spent.money == pytest.approx(0.001 * spent.calls)
    assert 1 <= spent.calls <= 3
    for n, answer in enumerate(answers):
        assert answer.numbers.get("score") == n or "budget.money" in answer.missing
    assert sum(answer.missing is None for answer in answers) == spent.calls


def test_calls_that_were_refused_are_free_and_lost_ones_are_not(endpoint, tmp_path):
    endpoint.acts(first(1, lambda call: error(500) if call.prompt == "number 1" else dropped()))
    with client(endpoint, ledger=str(tmp_path / "ledger.jsonl"), prices=PRICES) as judge:
        assert scores(judge.ask([question(1)])) == [1]
        assert judge.ledger.spent().calls == 1
        assert scores(judge.ask([question(2)])) == [2]
        spent = judge.ledger.spent()
    assert (spent.calls, spent.input) == (3, 200)
    assert spent.money == pytest.approx(0.003)


def test_money_that_cannot_be_counted_is_refused(endpoint, tmp_path):
    endpoint.acts(always(lambda call: said('{"score": 1}', usage=None)))
    values = {"prices": PRICES, "ledger": str(tmp_path / "ledger.jsonl")}
    with (
        client(endpoint, budget=BudgetConfig(money=1.0), **values) as judge,
        pytest.raises(ConfigError, match=r"judge\.budget\.money: .*budget\.calls"),
    ):
        judge.ask([question(n) for n in range(5)])
    assert len(endpoint.calls) == 1
    with client(endpoint, budget=BudgetConfig(calls=9), **values) as judge:
        assert scores(judge.ask([question(1)])) == [1]


# Token and trace --------------------------------------------------------------------------------


def test_the_token_is_sent_and_never_written(endpoint, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("JUDGE_TOKEN", f"{TOKEN}\n")
    caplog.set_level(logging.DEBUG)
    echoes = {
        "number 1": lambda call: said(f'{{"score": 1, "reason": "{TOKEN}"}}'),
        "number 2": lambda call: said(f"I was shown {TOKEN}"),
        "number 3": lambda call: error(500, f"Bearer {TOKEN} is \x1b[2J\nnot known"),
        "number 4": lambda call: error(400, f"Bearer {TOKEN} is not known"),
        "number 5": lambda call: said(None, TOKEN, f"not with {TOKEN}"),
    }
    endpoint.acts(always(lambda call: echoes[call.prompt](call)))
    values = {
        "token_env": "JUDGE_TOKEN",
        "ledger": str(tmp_path / "ledger.jsonl"),
        "cache": AnswerCacheConfig(folder=str(tmp_path / "answers")),
        "retries": 1,
    }
    with client(endpoint, **values) as judge:
        answers = judge.ask([question(n) for n in range(1, 6)])
        endpoint.acts(always(NEVER["401"]))
        assert "[token]" in judge.ask([question(9)])[0].missing
        written = [repr(part) for part in (answers, judge, judge._endpoints._all, judge._config)]
    with client(endpoint, **values) as judge, pytest.raises(ConfigError) as raised:
        judge.ask([question(9)])
    assert endpoint.calls[0].headers["authorization"] == f"Bearer {TOKEN}"
    chain = [raised.value, raised.value.__cause__]
    written += [repr(one) + str(one) for one in chain]
    written += [record.getMessage() for record in caplog.records]
    written += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(list(tmp_path.rglob("*.json*"))) == 2
    assert any("[token]" in text for text in written)
    for text in written:
        assert TOKEN not in text
    ours = [one.getMessage() for one in caplog.records if one.name == "atelier.outage"]
    assert ours
    assert all(text.isprintable() for text in ours)
    assert all(answer.missing.isprintable() for answer in answers[1:])


@pytest.mark.parametrize("held", [None, "", " \n", "two words", "caf\u00e9", "a\nb"])
def test_a_token_that_is_not_there_is_refused_without_its_value(held, monkeypatch):
    monkeypatch.delenv("JUDGE_TOKEN", raising=False)
    if held is not None:
        monkeypatch.setenv("JUDGE_TOKEN", held)
    own = {"placement": "remote", "urls": ["http://127.0.0.1:9/v1"], "model": "m"}
    with pytest.raises(ConfigError, match="JUDGE_TOKEN") as raised:
        JudgeClient(JudgeConfig(**own, token_env="JUDGE_TOKEN"))
    assert not held or not held.strip() or held not in str(raised.value)


def test_a_trace_sees_its_share_and_harms_nothing(endpoint, caplog):
    endpoint.acts(always(right))
    seen = []

    def trace(asked, answer):
        seen.append((asked.prompt, answer))
        raise RuntimeError("the mirror is down")

    questions = [question(n) for n in range(8)]
    with client(endpoint, trace=trace) as judge:
        answers = judge.ask(questions)
    assert scores(answers) == list(range(8))
    assert seen == [(one.prompt, answer) for one, answer in zip(questions, answers, strict=True)]
    assert "the mirror is down" in caplog.text
    seen.clear()
    with client(endpoint, trace=trace, trace_share=0.0) as judge:
        judge.ask(questions)
    assert seen == []


def test_nothing_is_left_when_it_is_closed(endpoint):
    endpoint.acts(always(right))
    before = {thread for thread in threading.enumerate() if thread.name == "judge"}
    with client(endpoint) as judge:
        assert isinstance(judge.ask([question(1)])[0], Answer)
    assert {thread for thread in threading.enumerate() if thread.name == "judge"} == before
