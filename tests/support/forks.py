"""Calls in a forked child of the tests' process."""

import os
import signal
from collections.abc import Callable
from typing import Any


def in_a_fork(call: Callable[[], Any]) -> str:
    """What a call returns in a child of this process, as text; fails if that takes long."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(10)  # ends it
        try:
            os.write(writing, str(call()).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    assert os.waitpid(child, 0)[1] == 0, "it hangs"
    return said
