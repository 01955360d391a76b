"""What takes no time worth speaking of, on a machine of any speed.

A test gives what it must not wait for far more seconds than PATIENCE: then the end alone says that
nobody waited, and PATIENCE only says when a test is given up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 60.0
FOR_EVER = 3600.0  # what nobody must wait for


@contextmanager
def at_once() -> Iterator[None]:
    """Fails where what is inside has waited for something that takes FOR_EVER, or never ends."""
    begun = time.monotonic()
    yield
    seconds = time.monotonic() - begun
    assert seconds < PATIENCE, f"it took {seconds:.0f} s: it has waited"


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, of Python and of C: what work costs on any machine."""
    count = 0

    def counting(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
