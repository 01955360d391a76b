"""Node 0's side: it gathers the other nodes before each life of the trainer, and watches them."""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from atelier.config.paths import repository_root
from atelier.config.schema import LOOPBACK, LaunchConfig, RunConfig
from atelier.errors import Stopped
from atelier.processes.supervised import SupervisedProcess
from atelier.stages.log_tail import LastError
from atelier.stages.nodes.board import SILENT_SECONDS, Board, NodeGone, free_port
from atelier.stages.run_file import read_run, shown_path
from atelier.tracking.run_directory import RunDirectory, write_json

logger = logging.getLogger(__name__)

PROOF = "meeting.json"  # beside the guards' records: who can read it shares the run's directory
POLL_SECONDS = 0.5
REMIND_EVERY_SECONDS = 300.0
# How long words of other nodes are waited for: why they ended, and that they have left.
WORDS_SECONDS = 5.0
CRASHED, MEANT = 1, (2, 3, 75, 143)


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
        ConfigError: on entering: its port cannot be listened on.
    """

    def __init__(self, run: RunDirectory, config: RunConfig) -> None:
        self._run, self._launch = run, config.launch
        self._board: Board | None = None
        self._lives = 0
        self._heard: dict[str, tuple[int, float]] = {}  # by token: the counter, and since when
        self._started: SupervisedProcess | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Meeting:
        launch = self._launch
        if launch.nodes == 1:
            return self
        self._board = Board(LOOPBACK, launch.master_port, keeps=True)
        proof = uuid.uuid4().hex
        write_json(self._run.processes / PROOF, {"proof": proof})
        known = read_run(self._run)
        self._board.put(
            "run",
            {
                "id": known["id"],
                "root": str(self._run.root),
                "commit": known["git"]["sha"],
                "nodes": launch.nodes,
                "proof": proof,
            },
        )
        if launch.launcher:
            self._started = self._stack.enter_context(self._launched())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._board is None:
            return
        code = 0 if error is None else int(getattr(error, "exit_code", CRASHED))
        self._board.put("closed", code)
        deadline = time.monotonic() + WORDS_SECONDS
        while any(self._tokens()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 5)
        self._stack.close()
        self._board.close()
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
        self._gather(self._board)
        self._lives += 1
        port = free_port()
        self._board.put("life", {"number": self._lives, "port": port})
        try:
            yield Life(agent_place(self._launch, 0, port), self, self._lives)
        finally:
            self._board.put("over", self._lives)

    # Watching ------------------------------------------------------------------------------------

    def failure(self, life: int) -> Ending | None:
        """How a life failed on another node: its ranks ended, or nothing is heard of it."""
        for rank, token in self._tokens():
            ended = self._ended(rank, token, life)
            if ended is not None and ended.code != 0:
                return ended
        there = {rank for rank, _ in self._tokens()}
        for rank in range(1, self._launch.nodes):
            if rank not in there:
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
        said: dict[str, Any] | None = self._board.read(f"ended/{token}")
        if said is None or said["life"] != life:
            return None
        return Ending(int(said["code"]), LastError(said["kind"], f"node {rank}: {said['text']}"))

    def _tokens(self) -> list[tuple[int, str]]:
        """Rank and token of every helper that lives; seats of others are freed."""
        assert self._board is not None
        living = []
        for rank in range(1, self._launch.nodes):
            token = self._board.read(f"seat/{rank}")
            if token is None:
                continue
            if self._is_heard(token):
                living.append((rank, token))
            else:
                self._board.remove(f"seat/{rank}")
        return living

    def _is_heard(self, token: str) -> bool:
        assert self._board is not None
        now, beats = time.monotonic(), self._board.count(f"beat/{token}")
        before, since = self._heard.get(token, (-1, now))
        if beats != before:
            self._heard[token] = (beats, now)
            return True
        return now - since < SILENT_SECONDS

    # Gathering -----------------------------------------------------------------------------------

    def _gather(self, board: Board) -> None:
        launch, began, said = self._launch, time.monotonic(), -REMIND_EVERY_SECONDS
        while (there := 1 + len(self._tokens())) < launch.nodes:
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


def agent_place(launch: LaunchConfig, rank: int, port: int) -> list[str]:
    """Torchrun's arguments for the agent of a node (processes/torchrun.py)."""
    return [
        *("--nnodes", str(launch.nodes), "--node-rank", str(rank)),
        *("--master-addr", launch.master_address, "--master-port", str(port)),
    ]
