"""Long work that nobody waits for any more ends between two of its parts.

Who gives up a call cannot stop the thread that is in it. What is asked again meanwhile would
compete with what goes on for nobody, and each try would leave the next one less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from threading import Event
from typing import TypeVar

Item = TypeVar("Item")

_given_up: ContextVar[Event | None] = ContextVar("given_up", default=None)


class GivenUp(Exception):
    """Nobody waits for what would come of it."""


def is_told_by(event: Event) -> None:
    """From now on, what this thread does is given up once the event is set. Threads that it starts
    know of it where they run in a copy of its context."""
    _given_up.set(event)


def stop_if_given_up() -> None:
    """
    Raises:
        GivenUp: nobody waits any more.
    """
    event = _given_up.get()
    if event is not None and event.is_set():
        raise GivenUp


def while_wanted(items: Iterable[Item]) -> Iterator[Item]:
    """The items, as long as somebody waits for what comes of them.

    Raises:
        GivenUp: nobody does.
    """
    for one in items:
        stop_if_given_up()
        yield one
