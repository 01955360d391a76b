"""How a command ends that is stopped: with a sentence, and the exit code of a shell.

SIGTERM becomes an exception, as Ctrl-C is one: what is half written is removed then, and what was
started is ended, by those who began it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

from atelier.errors import AtelierError

SIGNALLED = 128


class Interrupted(AtelierError):
    """Ctrl-C or SIGTERM ended the command.

    Args:
        to_go_on: the command that does, where there is one.
    """

    def __init__(self, by: signal.Signals, to_go_on: str | None) -> None:
        super().__init__(f"interrupted. To go on: {to_go_on}" if to_go_on else "interrupted")
        self.exit_code = SIGNALLED + by


class Terminated(SystemExit):
    """SIGTERM, as an exception."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises Terminated inside, unless it is ignored, or a verb does something else."""
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible(to_go_on: str | None = None) -> Iterator[None]:
    """Raise Interrupted where what is inside was stopped."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT, to_go_on) from None
    except Terminated:
        raise Interrupted(signal.SIGTERM, to_go_on) from None


class InterruptibleGroup(click.Group):
    """Verbs whose Ctrl-C click does not get to see: it would end them with 1 and "Aborted!"."""

    def invoke(self, ctx: click.Context) -> Any:
        with interruptible():
            return super().invoke(ctx)


def _terminate(signum: int, _: FrameType | None) -> NoReturn:
    signal.signal(signum, signal.SIG_DFL)  # a second one ends the process at once
    raise Terminated(SIGNALLED + signum)
