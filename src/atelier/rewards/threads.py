"""Daemon threads that score in the background.

Not `concurrent.futures.ThreadPoolExecutor`: the interpreter waits for its threads at exit, so one
hung scorer would keep a finished or failed run alive for ever.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from atelier.given_up import is_told_by, stop_if_given_up, while_wanted

Item = TypeVar("Item")
Result = TypeVar("Result")


_NAME = "score-"


def are_scoring() -> bool:
    """Whether any thread that scores is still there: one that hangs, or was given up."""
    return any(one.name.startswith(_NAME) for one in threading.enumerate())


def side_by_side(
    call: Callable[[Item], Result], items: Sequence[Item], threads: int, name: str
) -> list[Result]:
    """What a call gives of every item, in their order, by so many threads of this call's own: what
    hangs in one call keeps none from the next. One thread is the caller's.

    Raises:
        GivenUp: nobody waits for it any more.
        what it raised for the first item for which it did.
    """
    if threads == 1:
        return [call(item) for item in while_wanted(items)]
    outcomes: list[Outcome | None] = [None] * len(items)
    places = iter(range(len(items)))
    lock = threading.Lock()

    def call_at(place: int) -> Result:
        stop_if_given_up()
        return call(items[place])

    def work() -> None:
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            outcomes[place] = Outcome.of(partial(call_at, place))

    helpers = [
        threading.Thread(
            target=partial(copy_context().run, work), name=f"{_NAME}{name}", daemon=True
        )
        for _ in range(min(threads, len(items)))
    ]
    for one in helpers:
        one.start()
    for one in helpers:
        one.join()
    return [one.returned() for one in outcomes if one is not None]


@dataclass(frozen=True)
class Outcome:
    """What a call returned, or what it raised.

    A value of the future and not its exception: asyncio cannot carry a StopIteration, takes
    CancelledError and TimeoutError for its own, and ends the process at SystemExit.
    """

    value: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, call: Callable[[], Any]) -> Outcome:
        try:
            return cls(call())
        except BaseException as raised:  # it belongs to whoever waits, even SystemExit
            return cls(error=raised)

    def returned(self) -> Any:
        """What the call returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.value


class Submitted(NamedTuple):
    """A call, its future, and whether nobody waits for it any more."""

    call: Callable[[], Any]
    future: Future[Outcome]
    given_up: threading.Event


class ScoringThreads:
    """A fixed number of threads that run calls in the order submitted."""

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[Submitted | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._given_up: dict[Future[Outcome], threading.Event] = {}  # of calls that are not done
        self._threads: list[threading.Thread] = []
        for _ in range(workers):
            self._start_thread()

    def submit(self, call: Callable[[], Any]) -> Future[Outcome]:
        """Queue a call. The future raises nothing but CancelledError."""
        one = Submitted(call, Future(), threading.Event())
        with self._lock:
            self._given_up[one.future] = one.given_up
        self._calls.put(one)
        return one.future

    def give_up(self, future: Future[Outcome]) -> None:
        """Cancel a call that waits. A thread that is in it ends at the call's next part, if it has
        parts (given_up.py), and is replaced."""
        if future.cancel():
            self._forget(future)
            return
        with self._lock:
            event = self._given_up.get(future)
            if event is not None and not event.is_set():
                event.set()
                self._start_thread()

    def drop_queue(self) -> None:
        """Cancel the calls that wait."""
        while not self._calls.empty():
            try:
                waiting = self._calls.get_nowait()
            except queue.Empty:  # a thread took the last one
                break
            if waiting is not None:
                waiting.future.cancel()
                self._forget(waiting.future)

    def close(self, patience_seconds: float = 5.0) -> None:
        """End the threads; queued calls are cancelled, a hung thread is left to the process."""
        self.drop_queue()
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._calls.put(None)
        end = time.monotonic() + patience_seconds
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _forget(self, future: Future[Outcome]) -> None:
        with self._lock:
            self._given_up.pop(future, None)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{_NAME}{self.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (one := self._calls.get()) is not None:
            if not one.future.set_running_or_notify_cancel():
                self._forget(one.future)
                continue
            is_told_by(one.given_up)
            outcome = Outcome.of(one.call)
            with self._lock:
                del self._given_up[one.future]
                one.future.set_result(outcome)
                if one.given_up.is_set():
                    self._threads.remove(threading.current_thread())
                    return
