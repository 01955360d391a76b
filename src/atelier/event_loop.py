"""An event loop in a thread of its own, for requests that end in time wherever they wait.

A blocking socket bounds each read, so an answer that drips goes on for ever. A coroutine can be
cancelled wherever it waits: one limit holds for the look-up of the name, the connection, the
request, the headers and the body together.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

Result = TypeVar("Result")


class Closed(Exception):
    """The loop was closed before the call had a result."""


class Forked(Exception):
    """The process is a fork of the loop's: no thread runs the loop here."""

    def __init__(self) -> None:
        super().__init__(
            f"process {os.getpid()} was forked after this client was made, and the client's thread "
            "was not: make one in each process, or start it with spawn"
        )


class EventLoop:
    """Runs calls for any number of threads of the process that makes it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # between the last call that is taken and closing
        self._closed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], Coroutine[Any, Any, Result]], seconds: float) -> Result:
        """The call's result, from any thread but the loop's.

        Raises:
            TimeoutError: there was none within these seconds; the call is cancelled.
            Closed: the loop is closed, or was meanwhile.
            Forked: it would have none ever, because this is another process.
        """
        if os.getpid() != self._process:  # before the lock, which a thread of the other may hold
            raise Forked
        with self._lock:
            if self._closed:
                raise Closed
            future = asyncio.run_coroutine_threadsafe(_bounded(call, seconds), self._loop)
        try:
            return future.result()
        except CancelledError as error:
            raise Closed from error

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel every call, run a last one and end the thread. Closing twice is once.

        In a fork nothing is done: the connections are the other process's, and so is the thread.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_all_then(last), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _bounded(call: Callable[[], Coroutine[Any, Any, Result]], seconds: float) -> Result:
    async with asyncio.timeout(seconds):
        return await call()


async def _cancel_all_then(last: Callable[[], Coroutine[Any, Any, None]]) -> None:
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await last()
