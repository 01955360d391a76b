"""Measurements that are choices of one call: every choice is read by itself, and order is kept."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel

from atelier.config.sections.judge import JudgeConfig
from atelier.judge import Answer, JsonForm, JudgeClient, Question
from tests.support.judge_endpoint import (
    Call,
    FakeJudge,
    choice_of,
    error,
    judge_endpoint,
    said,
    said_in_choices,
)


class Score(BaseModel):
    score: int


FORM = JsonForm(Score)


@pytest.fixture(scope="module")
def endpoint():
    with judge_endpoint() as judge:
        yield judge


def mark(score: int) -> dict[str, Any]:
    return choice_of(json.dumps({"score": score}))


def ask(endpoint: FakeJudge, count: int = 1, **values: Any) -> list[Answer]:
    settings = {"placement": "remote", "urls": [endpoint.url], "model": "m", "deadline": 30}
    config = JudgeConfig.model_validate({**settings, "timeout": 20, **values})
    with JudgeClient(config) as judge:
        return judge.ask([Question(f"number {one}", FORM) for one in range(count)])


def choices_of(call: Call) -> int:
    return int(call.body.get("n", 1))


def test_measurements_come_in_calls_of_so_many_choices(endpoint: FakeJudge) -> None:
    async def script(call: Call):
        return said_in_choices([mark(10 * call.nth + one) for one in range(choices_of(call))])

    endpoint.acts(script)
    (answer,) = ask(endpoint, measurements=7, choices=3)
    assert sorted(choices_of(call) for call in endpoint.calls) == [1, 3, 3]
    assert (answer.measured, answer.asked) == (7, 7)
    # Which of the three calls arrives first is nobody's promise: the one of a single choice may.
    told = [10 * call.nth + one for call in endpoint.calls for one in range(choices_of(call))]
    assert sorted(one.score for one in answer.values) == sorted(told)
    assert answer.numbers["score"] == pytest.approx(sum(told) / 7)


def test_one_choice_says_nothing_of_n(endpoint: FakeJudge) -> None:
    async def script(call: Call):
        return said('{"score": 4}')

    endpoint.acts(script)
    ask(endpoint, measurements=2)
    assert not any("n" in call.body for call in endpoint.calls)


def test_answers_are_in_order_whatever_the_latency(endpoint: FakeJudge) -> None:
    """Published, results of a pool come as they end, and are laid beside sorted names."""

    async def script(call: Call):
        await asyncio.sleep(random.random() * 0.05)
        number = int(call.prompt.split()[1])
        return said_in_choices([mark(number)] * choices_of(call))

    endpoint.acts(script)
    answers = ask(endpoint, 24, measurements=4, choices=2, concurrency=16)
    assert [one.numbers["score"] for one in answers] == list(range(24))


def test_every_choice_is_read_not_the_first_alone(endpoint: FakeJudge) -> None:
    """One is cut off, one refused, one in the wrong form and repaired: three of five count."""
    choices = [
        mark(6),
        choice_of('{"score": 9}', finish_reason="length"),
        choice_of(None, refusal="I cannot judge people."),
        choice_of("a nine"),
        mark(8),
    ]

    async def script(call: Call):
        return said('{"score": 1}') if call.is_repair else said_in_choices(choices)

    endpoint.acts(script)
    (answer,) = ask(endpoint, measurements=5, choices=5)
    assert [one.score for one in answer.values] == [6, 1, 8]
    assert (answer.measured, answer.asked) == (3, 5)
    assert len(endpoint.calls) == 2
    assert "n" not in endpoint.calls[1].body
    (answer,) = ask(endpoint, measurements=5, choices=5, min_measured_share=0.7)
    assert answer.missing is not None
    assert "3 of 5" in answer.missing


def test_a_refusal_is_not_asked_for_again(endpoint: FakeJudge) -> None:
    """Published, it is asked for ever."""

    async def script(call: Call):
        return said_in_choices([choice_of(None, refusal="no")] * choices_of(call))

    endpoint.acts(script)
    (answer,) = ask(endpoint, measurements=4, choices=4)
    assert answer.missing is not None
    assert "refused" in answer.missing
    assert len(endpoint.calls) == 1


@pytest.mark.parametrize(("given", "calls"), [(1, 5), (2, 3), (9, 1)])
def test_an_endpoint_may_give_fewer_choices_or_more(
    endpoint: FakeJudge, given: int, calls: int
) -> None:
    async def script(call: Call):
        return said_in_choices([mark(call.nth)] * given)

    endpoint.acts(script)
    (answer,) = ask(endpoint, measurements=5, choices=5)
    assert answer.measured == 5
    assert len(endpoint.calls) == calls


def test_what_was_given_before_a_fault_stands(endpoint: FakeJudge) -> None:
    async def script(call: Call):
        return said_in_choices([mark(3)] * 2) if call.nth == 1 else error(400)

    endpoint.acts(script)
    (answer,) = ask(endpoint, measurements=3, choices=3)
    assert (answer.measured, answer.numbers["score"]) == (2, 3)


def test_the_cache_asks_only_for_what_it_lacks(endpoint: FakeJudge, tmp_path) -> None:
    async def script(call: Call):
        return said_in_choices([mark(call.nth)] * choices_of(call))

    cache = {"folder": str(tmp_path)}
    endpoint.acts(script)
    ask(endpoint, measurements=3, choices=3, cache=cache)
    (answer,) = ask(endpoint, measurements=5, choices=5, cache=cache)
    assert [choices_of(call) for call in endpoint.calls] == [3, 2]
    assert [one.score for one in answer.values] == [1, 1, 1, 2, 2]
    ask(endpoint, measurements=5, cache=cache)
    assert len(endpoint.calls) == 2  # how many a call gives is no part of the question


@pytest.mark.parametrize("detail", [None, "high"])
def test_how_closely_images_are_looked_at(endpoint: FakeJudge, detail: str | None) -> None:
    async def script(call: Call):
        return said('{"score": 1}')

    endpoint.acts(script)
    settings = {"placement": "remote", "urls": [endpoint.url], "model": "m"}
    config = JudgeConfig.model_validate({**settings, "image_detail": detail})
    with JudgeClient(config) as judge:
        judge.ask([Question("x", FORM, [Image.new("RGB", (8, 8))])])
    image = endpoint.calls[0].body["messages"][0]["content"][0]["image_url"]
    assert image.get("detail") == detail
