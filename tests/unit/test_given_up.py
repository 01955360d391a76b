"""Scoring that nobody waits for any more ends between two images, and leaves no thread behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from atelier.config.sections.rewards import OcrConfig
from atelier.given_up import GivenUp, stop_if_given_up, while_wanted
from atelier.rewards.base import ScoreBatch
from atelier.rewards.scorers.ocr import OcrScorer
from atelier.rewards.service import pictures
from atelier.rewards.service.bodies import Received
from atelier.rewards.service.pictures import PixelBounds
from atelier.rewards.service.protocol import ScoreRequest
from atelier.rewards.service.served import ServedReward
from atelier.rewards.threads import ScoringThreads, side_by_side

PATIENCE = 60.0


def until(condition: Callable[[], bool]) -> bool:
    """Whether it is true before patience ends."""
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def scoring(name: str) -> int:
    return sum(one.name == f"score-{name}" for one in threading.enumerate())


class Parts:
    """A call of a thousand parts, the first of which waits until it may end."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.done = 0

    def part(self, number: int) -> int:
        self.began.set()
        assert self.may_end.wait(PATIENCE)
        self.done += 1
        return number


@pytest.mark.parametrize("workers", [1, 3])
def test_a_call_that_is_given_up_ends_at_its_next_part(workers: int) -> None:
    parts, name = Parts(), f"parts{workers}"
    threads = ScoringThreads(name, 1)
    future = threads.submit(lambda: side_by_side(parts.part, range(1000), workers, name))
    assert parts.began.wait(PATIENCE)
    threads.give_up(future)
    assert threads.submit(lambda: "another").result(PATIENCE).value == "another"
    parts.may_end.set()
    assert isinstance(future.result(PATIENCE).error, GivenUp)
    assert parts.done <= workers
    assert until(lambda: scoring(name) == 1), "the thread that took its place"
    threads.close()
    assert until(lambda: scoring(name) == 0)


def test_what_is_waited_for_goes_on() -> None:
    threads = ScoringThreads("calm", 1)
    first = threads.submit(lambda: list(while_wanted(range(5))))
    waiting = threads.submit(lambda: side_by_side(str, range(5), 2, "calm"))
    assert first.result(PATIENCE).value == [*range(5)]
    assert waiting.result(PATIENCE).value == [*"01234"]
    threads.give_up(waiting)  # too late: nothing is given up, no thread is added
    assert threads.submit(stop_if_given_up).result(PATIENCE).error is None
    assert scoring("calm") == 1
    threads.close()


def test_a_call_that_waits_is_cancelled() -> None:
    parts = Parts()
    threads = ScoringThreads("queue", 1)
    first, second = threads.submit(lambda: parts.part(0)), threads.submit(lambda: parts.part(1))
    assert parts.began.wait(PATIENCE)
    threads.give_up(second)
    assert second.cancelled()
    assert scoring("queue") == 1
    parts.may_end.set()
    assert first.result(PATIENCE).value == 0
    assert threads.submit(lambda: 2).result(PATIENCE).value == 2
    threads.close()


def noise(count: int, side: int = 256) -> list[Image.Image]:
    levels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    return [Image.fromarray(one) for one in levels]


def test_a_reward_service_that_is_asked_again_and_again_has_no_more_threads_for_it() -> None:
    images = noise(24)
    batch = ScoreBatch(images, ["a word"] * 24, [{"target": "word"}] * 24, [0] * 24)
    items = pictures.to_items(batch)
    request = ScoreRequest(items=items)
    received = Received(request, len(items), lambda bounds: pictures.to_batch(items, bounds))
    reward = ServedReward(OcrScorer(OcrConfig(detect=True, workers=3)), 1, "digest")
    bounds = PixelBounds(picture=10**6, request=10**8)
    for _ in range(4):
        answer = asyncio.run(reward.score(received, bounds, timeout=0.3))
        assert all(one.error is not None for one in answer.results), "not even on this machine"
    assert until(lambda: scoring("ocr") == 1), "what was given up has ended"
    reward.close()
