"""What nodes tell each other: a key-value store that node 0 keeps, and what stands in it.

run             what is trained, by node 0: id and directory, number of nodes, proof, likeness
seat/K          token of who helps as node K; freed when nothing is heard of it
beat/TOKEN      a counter that grows while a helper lives
life            {number, id, crew}: the trainer's newest life, and the tokens by rank that share it
over            number of the newest life that has ended on node 0
ended/TOKEN     {life, code, kind, text}: how the ranks of a helper ended
closed          exit code of node 0's training

Node 0 has it in memory and serves it (service.py); others visit it (visitor.py). They may put what
they like where theirs stands (HELPERS_KEYS), so node 0 looks at the shape of it where it reads.
"""

from __future__ import annotations

import threading
from typing import Any

from atelier.errors import AtelierError

BEAT_SECONDS = 1.0
# A helper that was not heard of for so long is gone. Longer than the stop of its ranks may take.
SILENT_SECONDS = 40.0
# Beginnings of the keys that others than node 0 change.
HELPERS_KEYS = ("seat/", "beat/", "ended/")
# What a node is told of another's last error; more is in that one's log.
WORDS = 4000
# How long a helper waits for node 0: that prepares and measures before it trains, and it costs
# nothing.
WAIT_SECONDS = 6 * 3600.0


class NodeGone(AtelierError):
    """Another node is not there any more; the run can be resumed."""


class Board:
    """JSON values by key, for any number of threads."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = threading.Lock()

    def put(self, key: str, value: Any) -> None:
        with self._lock:
            self._values[key] = value

    def read(self, key: str) -> Any:
        """The value, None where nobody has put one."""
        with self._lock:
            return self._values.get(key)

    def put_first(self, key: str, value: Any) -> bool:
        """Put a value where none stands; whether it stands there now."""
        with self._lock:
            return bool(self._values.setdefault(key, value) == value)

    def remove_if(self, key: str, value: Any) -> None:
        """Remove a value where it is still this one, and not another's that came since."""
        with self._lock:
            if key in self._values and self._values[key] == value:
                del self._values[key]

    def count(self, key: str, more: int = 0) -> int:
        """A counter, after adding to it.

        Raises:
            TypeError: no whole number is added, or what stands there is none.
        """
        with self._lock:
            before = self._values.get(key, 0)
            if type(before) is not int or type(more) is not int:  # True is an int, too
                raise TypeError(f"{key}: whole numbers are counted")
            self._values[key] = before + more
            return before + more
