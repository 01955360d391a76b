"""The board of node 0 as other nodes see it: the same operations, each answered within a time."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from atelier.config.nodes_token import TOKEN_VARIABLE
from atelier.errors import ConfigError
from atelier.rewards.client.transport import CannotBeAsked, Reply, Transport, Unanswered
from atelier.stages.nodes.board import NodeGone

# A network may fail for a moment. Less than the time after which a silent node is gone.
ANSWER_SECONDS = 30.0
TRY_SECONDS = 10.0
AGAIN_SECONDS = 0.5
UNAUTHORIZED, OK = 401, 200
_GONE = "node 0 does not answer any more; resume its run, and help again"


class Visitor:
    """What a helper puts on node 0's board and reads there. Use as a context manager.

    Everything raises NodeGone once node 0 does not answer within ANSWER_SECONDS, or at once where
    nobody listens any more, and from then on without asking again.

    Attributes:
        run: what is trained, as node 0 says it (board.py).

    Raises:
        ConfigError: what answers there is no board, or wants another token.
    """

    def __init__(self, address: str, port: int, token: str | None) -> None:
        self._address, self._port = address, port
        host = f"[{address}]" if ":" in address else address
        self._url = f"http://{host}:{port}/"
        self._transport = Transport(connections=1, token=token)
        self._gone = False
        try:
            self.run = self._run()
        except NodeGone as error:
            self._transport.close()
            raise ConfigError(
                f"launch.master_port: {address}:{port} is no meeting place of a run: {error}"
            ) from error
        except ConfigError:
            self._transport.close()
            raise

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def put(self, key: str, value: Any) -> None:
        self._ask("put", key, value)

    def read(self, key: str) -> Any:
        """The value, None where nobody has put one."""
        return self._ask("read", key)

    def put_first(self, key: str, value: Any) -> bool:
        """Put a value where none stands; whether it stands there now."""
        return bool(self._ask("put_first", key, value))

    def remove_if(self, key: str, value: Any) -> None:
        """Remove a value where it is still this one, and not another's that came since."""
        self._ask("remove_if", key, value)

    def count(self, key: str, more: int = 0) -> int:
        """A counter, after adding to it, at least once: a lost answer is asked for again."""
        counted = self._ask("count", key, more)
        if not isinstance(counted, int):
            raise self._no_meeting_place("counts otherwise than one does")
        return counted

    def _run(self) -> dict[str, Any]:
        told = self._ask("read", "run")
        match told:
            case {"root": str(), "nodes": int(), "proof": str(), "likeness": dict(like)} if all(
                isinstance(one, str | None) for one in like.values()
            ):
                return dict(told)
        raise self._no_meeting_place("does not say what is trained")

    def _no_meeting_place(self, why: str) -> ConfigError:
        place = f"{self._address}:{self._port}"
        return ConfigError(
            f"launch.master_port: {place} is no meeting place of a run: what answers there {why}; "
            "give the port of node 0's launch.master_port"
        )

    def _ask(self, *asked: Any) -> Any:
        reply = self._reply(json.dumps(asked).encode())
        if reply.status == UNAUTHORIZED:
            raise ConfigError(
                f"{TOKEN_VARIABLE}: node 0 at {self._address}:{self._port} wants another token; "
                "set the same one in the environment of all nodes"
            )
        try:
            if reply.status == OK:
                return json.loads(reply.content)
        except (ValueError, RecursionError):
            pass  # said below
        raise self._no_meeting_place(f"does so with status {reply.status}, and not as one does")

    def _reply(self, body: bytes) -> Reply:
        if self._gone:
            raise NodeGone(_GONE)
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            left = deadline - time.monotonic()
            try:
                seconds = max(0.0, min(TRY_SECONDS, left))
                return self._transport.ask("POST", self._url, {}, body, seconds, fresh=True)
            except CannotBeAsked as error:
                raise ConfigError(
                    f"launch.master_address: {self._address}:{self._port}: {error}; mend the "
                    f"address, or {TOKEN_VARIABLE}"
                ) from error
            except Unanswered as error:
                if left <= AGAIN_SECONDS or refuses(self._address, self._port):
                    self._gone = True
                    raise NodeGone(_GONE) from error
            time.sleep(AGAIN_SECONDS)


def refuses(address: str, port: int) -> bool:
    """Whether the machine is there and nobody listens."""
    try:
        with socket.create_connection((address, port), timeout=5.0):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def why_silent(address: str, port: int) -> str | None:
    """Why nobody can be asked there now; None where somebody listens.

    Raises:
        ConfigError: there is no machine of that name.
    """
    try:
        with socket.create_connection((address, port), timeout=5.0):
            return None
    except socket.gaierror as error:
        raise ConfigError(
            f"launch.master_address: {address}: no machine of that name ({error.strerror})"
        ) from error
    except ConnectionRefusedError:
        return "nobody listens there yet"
    except OSError as error:
        return f"{error.strerror or error}: another address or a firewall?"
