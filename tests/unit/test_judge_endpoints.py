"""Several endpoints of one judge: shared out by queue, and those that fail rest."""

import asyncio
import time

import pytest
from PIL import Image

from atelier.config.sections.judge import JudgeConfig
from atelier.judge import JudgeClient, Question, YesNoForm
from tests.support.judge_endpoint import error, judge_endpoint, said

YES = [("yes", -0.1), ("no", -2.5)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("atelier.judge.client._FIRST_PAUSE", 0.02)


@pytest.fixture
def two():
    with judge_endpoint() as first, judge_endpoint() as second:
        yield first, second


def asked(count):
    image = Image.new("RGB", (8, 8), "red")
    return [Question(f"q{number}", YesNoForm(), [image]) for number in range(count)]


def client(endpoints, **values):
    own = {"placement": "remote", "urls": [one.url for one in endpoints], "model": "m"}
    return JudgeClient(JudgeConfig(**{**own, "deadline": 20, "timeout": 10, **values}))


def answers(seconds):
    async def script(call):
        await asyncio.sleep(seconds)
        return said("yes", first_token=YES)

    return script


async def fails(call):
    return error(500)


def test_the_quicker_one_gets_more(two):
    quick, slow = two
    quick.acts(answers(0.01))
    slow.acts(answers(0.5))
    with client(two, concurrency=2) as judge:
        found = judge.ask(asked(20))
    assert not [one.missing for one in found if one.missing]
    assert len(quick.calls) + len(slow.calls) == 20
    assert 1 <= len(slow.calls) < len(quick.calls)


def test_what_one_cannot_answer_the_other_does(two):
    dead, alive = two
    dead.acts(fails)
    alive.acts(answers(0.0))
    with client(two) as judge:
        found = judge.ask(asked(10))
        assert not [one.missing for one in found if one.missing]
        while_resting = len(dead.calls)
        judge.ask(asked(10))
    assert len(dead.calls) - while_resting <= 8  # at most those that were under way together


def test_one_that_recovered_is_asked_again(two):
    first, second = two
    first.acts(fails)
    second.acts(answers(0.02))
    with client(two, concurrency=2) as judge:
        judge.ask(asked(4))
        first.acts(answers(0.0))
        time.sleep(1.2)  # longer than its first rests
        judge.ask(asked(8))
    assert first.calls
