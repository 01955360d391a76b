"""What nodes tell each other: a key-value store that node 0 keeps, and what stands in it.

run             what is trained, by node 0: id and directory, commit, number of nodes, proof
seat/K          token of who helps as node K; freed when nothing is heard of it
beat/TOKEN      a counter that grows while a helper lives
life            {number, port}: the trainer's newest life, and where its ranks meet
over            number of the newest life that has ended on node 0
ended/TOKEN     {life, code, kind, text}: how the ranks of a helper ended
closed          exit code of node 0's training
"""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from typing import Any

from atelier.errors import AtelierError, ConfigError

ANSWER_SECONDS = 30.0
BEAT_SECONDS = 1.0
# A helper that was not heard of for so long is gone. Longer than the stop of its ranks may take.
SILENT_SECONDS = 40.0


class NodeGone(AtelierError):
    """Another node is not there any more; the run can be resumed."""


class Board:
    """JSON values by key, the same for all nodes.

    Everything raises NodeGone once node 0 does not answer.
    """

    def __init__(self, address: str, port: int, keeps: bool) -> None:
        """Open it, as node 0 (`keeps`) or as a visitor.

        Raises:
            ConfigError: the port cannot be listened on, or what answers there is no board.
        """
        from torch.distributed import DistError, TCPStore

        self._lost = DistError
        try:
            self._store: Any = TCPStore(
                address,
                port,
                is_master=keeps,
                timeout=timedelta(seconds=ANSWER_SECONDS),
                wait_for_workers=False,
            )
        except DistError as error:
            reason = str(error).splitlines()[0]
            what = "cannot be listened on" if keeps else "is no meeting place of a run"
            raise ConfigError(f"launch.master_port: {address}:{port} {what}: {reason}") from error

    def put(self, key: str, value: Any) -> None:
        self._ask("set", key, json.dumps(value))

    def read(self, key: str) -> Any:
        """The value, None where nobody has put one."""
        if not self._ask("check", [key]):
            return None
        text: bytes = self._ask("get", key)
        return json.loads(text)

    def put_first(self, key: str, value: Any) -> bool:
        """Put a value where none stands; whether it stands there now."""
        text = json.dumps(value)
        found: bytes = self._ask("compare_set", key, "", text)
        return found.decode() == text

    def remove(self, key: str) -> None:
        self._ask("delete_key", key)

    def count(self, key: str, more: int = 0) -> int:
        """A counter, after adding to it."""
        return int(self._ask("add", key, more))

    def close(self) -> None:
        """Nobody is answered any more."""
        self._store = None

    def _ask(self, what: str, *arguments: Any) -> Any:
        try:
            return getattr(self._store, what)(*arguments)
        except self._lost as error:
            raise NodeGone(
                "node 0 does not answer any more; resume its run, and help again"
            ) from error


def is_listening(address: str, port: int) -> bool:
    """Whether somebody answers there now.

    Raises:
        ConfigError: there is no machine of that name.
    """
    try:
        with socket.create_connection((address, port), timeout=5.0):
            return True
    except socket.gaierror as error:
        raise ConfigError(
            f"launch.master_address: {address}: no machine of that name ({error.strerror})"
        ) from error
    except OSError:
        return False


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
