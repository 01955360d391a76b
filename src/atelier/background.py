"""Work done in a thread beside what the program waits for: once, ahead, or again and again."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Self, TypeVar

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 10.0

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def meanwhile(name: str, work: Callable[[], object]) -> Iterator[None]:
    """Inside, `work` is done in a thread; leaving waits for its end.

    However long it takes: the interpreter's end, in the middle of an import, is an abort.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def done_ahead(
    name: str, work: Callable[[Item], Result], items: Iterable[Item], most: int
) -> Iterator[Iterator[Result]]:
    """Inside, `work` is done of each item in a thread, before its result is asked for; what it
    raises is raised there. Results come in the order of the items.

    Args:
        name: of the thread.
        most: results that wait to be asked for, that under way among them.
    """
    left = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix=name) as pool:
        waiting = deque(pool.submit(work, one) for one in islice(left, most))

        def results() -> Iterator[Result]:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(work, one) for one in islice(left, 1))
                yield result

        try:
            yield results()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class BackgroundLoop:
    """A context in which `turn` is called in a thread, with pauses of the seconds it returns.

    The thread sees the caller's context variables: they say which task its log lines belong to.

    Args:
        name: of the thread.
        turn: does its work once; returns the seconds until the next time, None to end the loop.
            What it raises ends the loop, too, and is logged: it handles what may fail.
        first_after: seconds before the first turn.
    """

    def __init__(
        self, name: str, turn: Callable[[], float | None], first_after: float = 0.0
    ) -> None:
        self._turn = turn
        self._first_after = first_after
        self._leaving = False
        self._awake = threading.Event()
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), name=name, daemon=True
        )

    @property
    def is_left(self) -> bool:
        return self._leaving

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """End the pause: the next turn begins now."""
        self._awake.set()

    def leave(self, patience: float = LEAVE_SECONDS) -> None:
        """End the loop, and wait for a turn that is under way; more than once is harmless.

        Args:
            patience: seconds, after which a turn that hangs is left to the process's end (the
                thread is a daemon).
        """
        self._leaving = True
        self._awake.set()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def _run(self) -> None:
        pause: float | None = self._first_after
        while pause is not None:
            self._awake.wait(pause)
            self._awake.clear()
            if self._leaving:
                return
            pause = self._logged_turn()

    def _logged_turn(self) -> float | None:
        try:
            return self._turn()
        except Exception:  # nobody else would hear of it
            logger.exception("%s: failed, and does no more of its work", self._thread.name)
            return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
