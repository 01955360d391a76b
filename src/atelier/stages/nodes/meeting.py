"""Node 0's side: it gathers the other nodes before each life of the trainer, and watches them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from atelier.config.nodes_token import board_token
from atelier.config.paths import repository_root
from atelier.config.schema import RunConfig
from atelier.config.sections.launch import LaunchConfig
from atelier.errors import ConfigError, Stopped
from atelier.processes.supervised import SupervisedProcess
from atelier.stages.log_tail import LastError
from atelier.stages.nodes.board import SILENT_SECONDS, WORDS, Board, NodeGone
from atelier.stages.nodes.likeness import likeness
from atelier.stages.nodes.service import served
from atelier.stages.run_file import read_run, shown_path
from atelier.tracking.run_directory import RunDirectory, write_json

logger = logging.getLogger(__name__)

PROOF = "meeting.json"  # beside the guards' records: who can read it shares the run's directory
POLL_SECONDS = 0.5
REMIND_EVERY_SECONDS = 300.0
# How long words of other nodes are waited for: why they ended, and that they have left.
WORDS_SECONDS = 5.0
DONE, CRASHED, MEANT = 0, 1, (2, 3, 75, 143)
SIGNALLED = 128  # more than the number of the signal that ended a process: its exit code


@dataclass(frozen=True)
class Ending:
    """How the trainer ended on a node: exit code, and its last error."""

    code: int
    error: LastError


@dataclass(frozen=True)
class Life:
    """One life of the trainer on all nodes.

    Attributes:
        place: torchrun's arguments that say where this node's agent finds the others.
    """

    place: Sequence[str] = ()
    meeting: Meeting | None = None
    number: int = 0

    def failure(self) -> Ending | None:
        """How it failed on another node, as far as is known now."""
        return self.meeting.failure(self.number) if self.meeting else None

    def ending(self, here: Ending | None) -> Ending:
        """How it ended: here (None where it was stopped for another node's sake), or there, where
        that says more than that ranks lost each other."""
        if self.meeting is not None and (here is None or here.code not in (0, *MEANT)):
            there = self.meeting.words(self.number)
            if there is not None and (here is None or there.code in MEANT):
                return there
        return here or Ending(CRASHED, LastError(None, "another node ended"))


class Meeting:
    """A context in which other nodes may help; nothing happens where there are none.

    Raises:
        ConfigError: on entering: its ports cannot be listened on, or a token is missing.
    """

    def __init__(self, run: RunDirectory, config: RunConfig) -> None:
        self._run, self._config, self._launch = run, config, config.launch
        self._board: Board | None = None
        self._lives = 0
        self._crew: Mapping[int, str] = {}  # rank and token of who shares the newest life
        self._heard: dict[str, tuple[int, float]] = {}  # by token: the counter, and since when
        self._started: SupervisedProcess | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Meeting:
        launch = self._launch
        if launch.nodes == 1:
            return self
        token = board_token(launch)
        require_free(agent_port(launch))
        board, proof = Board(), uuid.uuid4().hex
        write_json(self._run.processes / PROOF, {"proof": proof})
        board.put(
            "run",
            {
                "id": read_run(self._run)["id"],
                "root": str(self._run.root),
                "nodes": launch.nodes,
                "proof": proof,
                "likeness": likeness(self._config),
            },
        )
        with ExitStack() as opening:
            place = (launch.master_address, launch.master_port)
            opening.enter_context(served(board, *place, token, launch.nodes))
            if launch.launcher:
                self._started = opening.enter_context(self._launched())
            self._stack = opening.pop_all()
        self._board = board
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(DONE if error is None else exit_code(error))

    def release(self) -> None:
        """Training is done: let the other nodes go, whatever is left to do here."""
        self._close(DONE)

    def _close(self, code: int) -> None:
        if self._board is None:
            return
        self._board.put("closed", code)
        deadline = time.monotonic() + WORDS_SECONDS
        while any(self._tokens()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 5)
        self._stack.close()
        self._board = None
        (self._run.processes / PROOF).unlink(missing_ok=True)

    @contextmanager
    def life(self) -> Iterator[Life]:
        """Wait until all nodes are there, and begin a life of the trainer with them.

        Raises:
            Stopped: they did not come within `launch.join_limit`.
        """
        if self._board is None:
            yield Life()
            return
        self._crew = self._gather()
        self._lives += 1
        own = uuid.uuid4().hex
        crew = {str(rank): token for rank, token in self._crew.items()}  # as JSON has it
        self._board.put("life", {"number": self._lives, "id": own, "crew": crew})
        try:
            yield Life(agent_place(self._launch, 0, own), self, self._lives)
        finally:
            self._board.put("over", self._lives)

    # Watching ------------------------------------------------------------------------------------

    def failure(self, life: int) -> Ending | None:
        """How a life failed on another node: its ranks ended, or nothing is heard of it."""
        for rank, token in self._crew.items():
            ended = self._ended(rank, token, life)
            if ended is not None and ended.code != 0:
                return ended
        there = dict(self._tokens())
        for rank, token in self._crew.items():
            if there.get(rank) != token:  # another one that has come since is not in this life
                text = f"node {rank} is gone: it left, or nothing was heard of it for a while"
                return Ending(CRASHED, LastError(NodeGone.__name__, text))
        return None

    def words(self, life: int) -> Ending | None:
        """How a life failed on another node, once one has said so: one that meant it, if any."""
        deadline = time.monotonic() + WORDS_SECONDS
        found: Ending | None = None
        while time.monotonic() < deadline and (found is None or found.code not in MEANT):
            found = self.failure(life) or found
            time.sleep(POLL_SECONDS / 5)
        return found

    def _ended(self, rank: int, token: str, life: int) -> Ending | None:
        assert self._board is not None
        match self._board.read(f"ended/{token}"):
            case {
                "life": int(of),
                "code": int(code),
                "kind": str() | None as kind,
                "text": str(text),
            }:
                said = Ending(code, LastError(kind, f"node {rank}: {text[-WORDS:]}"))
                return said if of == life else None
        return None  # nothing, or nothing that a helper says

    def _tokens(self) -> list[tuple[int, str]]:
        """Rank and token of every helper that lives; seats of others are freed."""
        assert self._board is not None
        living = []
        for rank in range(1, self._launch.nodes):
            token = self._board.read(f"seat/{rank}")
            if isinstance(token, str) and self._is_heard(token):
                living.append((rank, token))
            else:
                self._board.remove_if(f"seat/{rank}", token)
        return living

    def _is_heard(self, token: str) -> bool:
        return time.monotonic() - self._last_heard(token) < SILENT_SECONDS

    def _last_heard(self, token: str) -> float:
        """When its counter was last seen to grow, or first seen at all."""
        assert self._board is not None
        now, said = time.monotonic(), self._board.read(f"beat/{token}")
        beats = said if isinstance(said, int) else 0
        before, since = self._heard.get(token, (-1, now))
        if beats != before:
            self._heard[token] = (beats, since := now)
        return since

    # Gathering -----------------------------------------------------------------------------------

    def _gather(self) -> dict[int, str]:
        """Rank and token of all others, each heard of since: one that was killed a moment ago
        still has its seat."""
        self._tokens()  # what was counted until now is not heard since
        launch, began, said = self._launch, time.monotonic(), -REMIND_EVERY_SECONDS
        while True:
            crew = {rank: one for rank, one in self._tokens() if self._last_heard(one) >= began}
            there = 1 + len(crew)
            if there == launch.nodes:
                return crew
            waited = time.monotonic() - began
            count = f"{there} of launch.nodes {launch.nodes} are there"
            how = " ".join(["atelier", *visit(launch)])
            if waited > launch.join_limit:
                raise Stopped(
                    f"{count} after launch.join_limit {launch.join_limit:g} s; on each of the "
                    f"others start: {how}; and resume the run"
                )
            if (code := self._started.poll() if self._started else None) is not None:
                raise Stopped(
                    f"launch.launcher: {launch.launcher[0]} ended with exit code {code} while "
                    f"{count}; {shown_path(self._launcher_log)} says why"
                )
            if waited - said > REMIND_EVERY_SECONDS:
                said = waited
                logger.info("train: %s; the others come with: %s", count, how)
            time.sleep(POLL_SECONDS)

    @property
    def _launcher_log(self) -> Path:
        return self._run.train / "nodes" / "launcher.log"

    def _launched(self) -> SupervisedProcess:
        """The user's launcher, which starts the other nodes."""
        own = [sys.executable, "-m", "atelier", *visit(self._launch)]
        return SupervisedProcess(
            [*self._launch.launcher, *own],
            self._launcher_log,
            os.environ,
            repository_root(),
            record=self._run.processes / "launcher.json",
        )


def visit(launch: LaunchConfig) -> list[str]:
    """The words after `atelier` with which another node helps a run."""
    return ["node", "--address", launch.master_address, "--port", str(launch.master_port)]


def agent_port(launch: LaunchConfig) -> int:
    """Where torchrun's agents meet: beside the nodes', so that two ports are all to open for it."""
    return launch.master_port + 1


def require_free(port: int) -> None:
    """Raise ConfigError where somebody listens on the agents' port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(
                f"launch.master_port: {port}, the one after it, cannot be listened on: "
                f"{error.strerror}; torchrun meets there: take another pair of ports"
            ) from error


def agent_place(launch: LaunchConfig, rank: int, life: str) -> list[str]:
    """Torchrun's arguments for the agent of a node (processes/torchrun.py).

    Args:
        life: id of the trainer's life, so that agents of two never take each other for theirs.
    """
    return [
        *("--nnodes", str(launch.nodes), "--node-rank", str(rank), "--life", life),
        *("--master-addr", launch.master_address, "--master-port", str(agent_port(launch))),
    ]


def exit_code(error: BaseException) -> int:
    """What this process ends with, by what ended its training.

    A SIGTERM arrives as SystemExit, or in a flow as an exception that carries the signal.
    """
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return SIGNALLED + signal.SIGINT
    if isinstance(number := getattr(error, "signal", None), int):
        return SIGNALLED + number
    return int(getattr(error, "exit_code", CRASHED))
