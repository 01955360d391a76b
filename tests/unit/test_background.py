"""A loop in the background: turns, pauses, waking, leaving."""

import contextvars
import logging
import threading
import time

import pytest

from atelier.background import BackgroundLoop, done_ahead, meanwhile
from tests.support.patience import FOR_EVER, PATIENCE

NEVER = 3600.0


def test_what_is_done_meanwhile_is_done_at_the_end_also_when_the_body_fails():
    done = []

    def work() -> None:
        time.sleep(0.05)
        done.append(True)

    with pytest.raises(KeyError), meanwhile("work", work):
        raise KeyError
    assert done == [True]


def test_results_done_ahead_come_in_order_and_are_bounded():
    done = threading.Semaphore(0)

    def work(number: int) -> int:
        done.release()
        return number * 10

    with done_ahead("work", work, range(6), 2) as results:
        assert all(done.acquire(timeout=10) for _ in range(2)), "before one is asked for"
        assert not done.acquire(timeout=0.05), "two wait, and no third is begun"
        assert next(results) == 0
        assert done.acquire(timeout=10)
        assert list(results) == [10, 20, 30, 40, 50]
    with done_ahead("work", work, (), 2) as results:
        assert list(results) == []


def test_what_fails_ahead_is_raised_where_it_is_asked_for():
    with done_ahead("work", lambda number: 6 // number, [1, 0, 2], 3) as results:
        assert next(results) == 6
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_what_is_left_is_not_done():
    done, go_on = [], threading.Event()

    def work(number: int) -> None:
        go_on.wait(10)
        done.append(number)

    def leave():
        with done_ahead("work", work, range(9), 9):
            threading.Timer(0.05, go_on.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        leave()
    assert done == [0]


def test_turns_follow_each_other_until_it_is_left():
    turns = threading.Semaphore(0)

    def turn() -> float:
        turns.release()
        return 0.001

    with BackgroundLoop("turns", turn):
        assert all(turns.acquire(timeout=10) for _ in range(3))
    while turns.acquire(blocking=False):
        pass
    assert not turns.acquire(timeout=0.05)


def test_waking_ends_a_pause():
    turned = threading.Event()

    def turn() -> float:
        turned.set()
        return NEVER

    with BackgroundLoop("sleeper", turn, first_after=NEVER) as loop:
        assert not turned.wait(0.05)
        loop.wake()
        assert turned.wait(10)


def test_a_turn_that_returns_none_is_the_last():
    turns = []

    def turn() -> None:
        turns.append(len(turns))

    with BackgroundLoop("once", turn) as loop:
        deadline = time.monotonic() + PATIENCE
        while not turns and time.monotonic() < deadline:
            loop.wake()
    assert turns == [0]


def test_leaving_waits_for_the_turn_under_way_and_no_longer_than_told():
    begun, end = threading.Event(), threading.Event()

    def turn() -> None:
        begun.set()
        end.wait(FOR_EVER)

    loop = BackgroundLoop("slow", turn)
    loop.start()
    assert begun.wait(PATIENCE)
    loop.leave(patience=0.1)  # the turn goes on
    assert any(thread.name == "slow" for thread in threading.enumerate())
    end.set()
    loop.leave()
    assert not any(thread.name == "slow" for thread in threading.enumerate())


def test_one_never_started_can_be_left():
    BackgroundLoop("idle", lambda: pytest.fail("turned")).leave()


def test_a_turn_sees_the_callers_context():
    variable = contextvars.ContextVar("variable", default="outside")
    variable.set("inside")
    seen = []
    done = threading.Event()

    def turn() -> None:
        seen.append(variable.get())
        done.set()

    with BackgroundLoop("context", turn):
        assert done.wait(10)
    assert seen == ["inside"]


def test_a_turn_that_fails_ends_the_loop_in_words(caplog):
    logging.getLogger("atelier").propagate = True

    def turn() -> float:
        raise KeyError("folder")

    loop = BackgroundLoop("scorer", turn)
    loop.start()
    loop._thread.join(10)
    assert not loop._thread.is_alive()
    assert "scorer: failed, and does no more of its work" in caplog.text
    assert "KeyError: 'folder'" in caplog.text
