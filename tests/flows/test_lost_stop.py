"""A stop that Python drops on its way is asked for again, and one that is under way is not."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Iterator
from uuid import uuid4

import pytest
from prefect.exceptions import TerminationSignal

from tasks import cancellation
from tasks.cancellation import CancellationWatch


@pytest.fixture
def watch(monkeypatch) -> Iterator[CancellationWatch]:
    """Inside Prefect's handling of SIGTERM, as flows enter it; nobody cancels."""

    def raise_it(signum, frame):
        raise TerminationSignal(signal=signum)

    monkeypatch.setattr(cancellation, "INSIST_EVERY_SECONDS", 0.2)
    monkeypatch.setattr(CancellationWatch, "_ask", lambda _: False)
    before = signal.signal(signal.SIGTERM, raise_it)
    yield CancellationWatch(uuid4())
    signal.signal(signal.SIGTERM, before)


class Thing:
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_that_was_dropped_comes_again(watch):
    def stop_in_a_callback(_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # here the exception is raised, and dropped

    passed = []

    def work():
        thing = Thing()
        reference = weakref.ref(thing, stop_in_a_callback)
        del thing
        passed.append(reference())
        time.sleep(10)

    with watch, pytest.raises(TerminationSignal):
        work()
    assert passed == [None]


def test_what_cleans_up_is_not_disturbed(watch):
    cleaned = []

    def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            time.sleep(1.0)  # several times as long as a stop is insisted on
            cleaned.append(True)

    with watch, pytest.raises(TerminationSignal):
        work()
    assert cleaned
