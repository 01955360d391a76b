"""A flow run ends itself when it is cancelled: its worker may be dead.

Prefect's worker answers a cancel with SIGTERM to the flow's process. Where there is no worker any
more, nobody does, so every flow run asks the server for its own state and sends itself that
SIGTERM: one way to stop, whoever noticed first. It arrives as Prefect's TerminationSignal in the
main thread, on whose way up every context stops what it started.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.exceptions import TerminationSignal

from atelier.background import BackgroundLoop
from tasks.server import UNANSWERED, ask_server

ASK_EVERY_SECONDS = 3.0
# How often a stop is looked after that may have been lost.
INSIST_EVERY_SECONDS = 2.0
# How long a stopping flow waits for the answer to whether it was cancelled.
PATIENCE_SECONDS = 8.0
# How long a flow that is done waits for a question under way: Prefect has its own end to see to.
LEAVE_SECONDS = 0.5
CANCELLED_STATES = (StateType.CANCELLING, StateType.CANCELLED)

logger = logging.getLogger("atelier.flow")


class CancellationWatch:
    """Inside, a cancel in Prefect raises TerminationSignal in the main thread, once.

    A server that is away is asked again later. To be entered in the flow's main thread, inside
    Prefect's own handling of SIGTERM.
    """

    def __init__(self, flow_run_id: UUID) -> None:
        self._flow_run_id = flow_run_id
        self._cancelled = threading.Event()
        self._answered = threading.Event()
        self._stopping = False
        self._left = False
        self._handler_before: Any = None
        self._loop = BackgroundLoop("cancellation-watch", self._watch)
        self._insistence = BackgroundLoop("insistence", self._insist, INSIST_EVERY_SECONDS)

    def is_cancelled(self) -> bool:
        """Whether the run is Cancelling or Cancelled: asked now, within `PATIENCE_SECONDS`."""
        if not self._cancelled.is_set():
            self._answered.clear()
            self._loop.wake()
            self._answered.wait(PATIENCE_SECONDS)
        return self._cancelled.is_set()

    def _watch(self) -> float | None:
        is_cancelled = self._ask()
        if is_cancelled:
            self._cancelled.set()
        self._answered.set()
        if not is_cancelled:
            return ASK_EVERY_SECONDS
        if not self._stopping and not self._left:
            logger.info("the run was cancelled: stopping")
            os.kill(os.getpid(), signal.SIGTERM)
        return None

    def _ask(self) -> bool:
        try:
            with ask_server() as client:
                state = client.read_flow_run(self._flow_run_id).state
        except UNANSWERED:
            return False
        return state is not None and state.type in CANCELLED_STATES

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        """Only the first counts: another one would cut short what the first one cleans up.

        Unless the first was lost: Python drops what is raised while a weak reference's callback or
        a `__del__` runs. So a stop is asked for again until it is seen to be under way.
        """
        if self._stopping and _is_under_way():
            return
        self._stopping = True
        if callable(self._handler_before):
            self._handler_before(signum, frame)

    def _insist(self) -> float:
        if self._stopping and not self._left:
            os.kill(os.getpid(), signal.SIGTERM)
        return INSIST_EVERY_SECONDS

    def __enter__(self) -> CancellationWatch:
        if threading.current_thread() is threading.main_thread():
            self._handler_before = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._insistence.start()
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        self._insistence.leave(LEAVE_SECONDS)
        self._loop.leave(LEAVE_SECONDS)
        # A run that is stopping stays deaf until Prefect has put its own handler back.
        if self._handler_before is not None and not self._stopping:
            signal.signal(signal.SIGTERM, self._handler_before)


def _is_under_way() -> bool:
    """Whether this thread handles a TerminationSignal, or something that came of one."""
    error = sys.exception()
    while error is not None:
        if isinstance(error, TerminationSignal):
            return True
        error = error.__context__
    return False
