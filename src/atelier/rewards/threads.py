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
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

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
    hangs in one call keeps none from the next.

    Raises:
        what it raised for the first item for which it did.
    """
    outcomes: list[Outcome | None] = [None] * len(items)
    places = iter(range(len(items)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            outcomes[place] = Outcome.of(partial(call, items[place]))

    helpers = [
        threading.Thread(target=work, name=f"{_NAME}{name}", daemon=True)
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


class ScoringThreads:
    """A fixed number of threads that run calls in the order submitted."""

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[tuple[Future[Outcome], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._given_up: set[Future[Outcome]] = set()
        self._threads: list[threading.Thread] = []
        for _ in range(workers):
            self._start_thread()

    def submit(self, call: Callable[[], Any]) -> Future[Outcome]:
        """Queue a call. The future raises nothing but CancelledError."""
        future: Future[Outcome] = Future()
        self._calls.put((future, call))
        return future

    def give_up(self, future: Future[Outcome]) -> None:
        """Cancel a call that waits; a thread that hangs in it is left behind and replaced."""
        if future.cancel():
            return
        with self._lock:
            if not future.done():
                self._given_up.add(future)
                self._start_thread()

    def drop_queue(self) -> None:
        """Cancel the calls that wait."""
        while not self._calls.empty():
            try:
                waiting = self._calls.get_nowait()
            except queue.Empty:  # a thread took the last one
                break
            if waiting is not None:
                waiting[0].cancel()

    def close(self, patience_seconds: float = 5.0) -> None:
        """End the threads; queued calls are cancelled, a hung thread is left to the process."""
        self.drop_queue()
        for _ in self._threads:
            self._calls.put(None)
        end = time.monotonic() + patience_seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{_NAME}{self.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            outcome = Outcome.of(call)
            with self._lock:
                future.set_result(outcome)
                if future in self._given_up:
                    self._given_up.remove(future)
                    return
