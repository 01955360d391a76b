"""The other nodes' side: one comes to a run's meeting place and trains with it until it is done.

It has no run of its own. What it computes is in the run's resolved configuration, in the directory
that all nodes share; it writes its log there, and what its ranks write.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atelier.config.paths import repository_root
from atelier.config.placement import training_gpus
from atelier.config.resolve import load_stage_config
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError, DataError
from atelier.processes.gpus import claim_gpus
from atelier.processes.supervised import SupervisedProcess
from atelier.stages import quiet
from atelier.stages.log_tail import LogTail
from atelier.stages.nodes.board import BEAT_SECONDS, Board, NodeGone, is_listening
from atelier.stages.nodes.meeting import POLL_SECONDS, PROOF, REMIND_EVERY_SECONDS, agent_place
from atelier.stages.run_file import commit_here
from atelier.stages.train import trainer_command, trainer_environment
from atelier.tracking.run_directory import RunDirectory, read_json_object

logger = logging.getLogger(__name__)

# A file on a network disk is seen by other machines some seconds after it was written.
SHARED_SECONDS = 60.0
# How long ranks may take to end by themselves once they have on node 0.
LEAVE_SECONDS = 10.0


def help_train(address: str, port: int, rank: int | None = None) -> int:
    """Train with the run that meets at an address, from when it is there until it is done.

    To be called in the main thread: only there does a stop reach it.

    Args:
        rank: which node this is to be, from 1 on; None: the next one that is missing.

    Returns:
        The exit code of node 0's training.

    Raises:
        ConfigError: the run, its directory or its code is not the same here, or the rank is taken.
        PlanError, Stopped: this machine has too few GPUs, or they were not free in time.
        NodeGone: node 0 is not there any more.
    """
    quiet.libraries_by_default()
    _wait_for(address, port)
    board = Board(address, port, keeps=False)
    told = _told(board)
    run = _shared_directory(told)
    config = load_stage_config(run.config("train"))
    with contextlib.chdir(repository_root()):
        claim_gpus(training_gpus(config), wait=config.launch.wait_for_gpus)
        with _seat(board, told["nodes"], rank) as (own, token):
            logger.info("node %d of %d: training %s", own, told["nodes"], run.root.name)
            return _Helper(board, run, config, own, token).help()


def _wait_for(address: str, port: int) -> None:
    said, began = -REMIND_EVERY_SECONDS, time.monotonic()
    while not is_listening(address, port):
        waited = time.monotonic() - began
        if waited - said > REMIND_EVERY_SECONDS:
            said = waited
            logger.info("waiting for node 0 to train at %s:%d", address, port)
        time.sleep(BEAT_SECONDS)


def _told(board: Board) -> dict[str, Any]:
    told: dict[str, Any] | None = None
    deadline = time.monotonic() + SHARED_SECONDS
    while told is None:
        if time.monotonic() > deadline:
            raise ConfigError("launch.master_address: what answers there tells of no run")
        told = board.read("run")
        time.sleep(POLL_SECONDS / 5)
    return told


def _shared_directory(told: dict[str, Any]) -> RunDirectory:
    """The run's directory, proven to be the one that node 0 writes.

    Raises:
        ConfigError: it is another one, or none; or the code is of another commit.
    """
    run = RunDirectory(Path(told["root"]))
    deadline = time.monotonic() + SHARED_SECONDS
    while _proof(run) != told["proof"]:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{run.root}: not the directory that node 0 writes: all nodes need the same one, "
                "at the same path; on node 0 let ATELIER_RUNS name a folder on a disk they share"
            )
        time.sleep(BEAT_SECONDS)
    here = commit_here()
    if here is not None and told["commit"] is not None and here != told["commit"]:
        raise ConfigError(
            f"node 0 runs the code of commit {told['commit'][:12]}, and this is {here[:12]}; "
            "check out the same one on all nodes"
        )
    return run


def _proof(run: RunDirectory) -> Any:
    with contextlib.suppress(DataError):
        return read_json_object(run.processes / PROOF).get("proof")
    return None


@contextmanager
def _seat(board: Board, nodes: int, rank: int | None) -> Iterator[tuple[int, str]]:
    """Be one of the nodes, inside: its rank, and the token that stands for this process."""
    token = uuid.uuid4().hex
    board.count(f"beat/{token}", 1)
    wanted = range(1, nodes) if rank is None else [rank]
    own = next((one for one in wanted if board.put_first(f"seat/{one}", token)), None)
    if own is None:
        taken = "every node is" if rank is None else f"node {rank} is"
        raise ConfigError(
            f"launch.node_rank: {taken} there already, of launch.nodes {nodes}; one that was "
            "killed is forgotten within a minute"
        )
    try:
        yield own, token
    finally:
        with contextlib.suppress(NodeGone):
            board.remove(f"seat/{own}")


class _Helper:
    """Runs this node's agent in each life of the trainer."""

    def __init__(
        self, board: Board, run: RunDirectory, config: RunConfig, rank: int, token: str
    ) -> None:
        self._board, self._run, self._config = board, run, config
        self._rank, self._token = rank, token

    def help(self) -> int:
        """Until node 0 closes; returns its exit code."""
        done = 0
        while True:
            self._beat()
            closed = self._board.read("closed")
            if closed is not None:
                return int(closed)
            newest = self._board.read("life")
            if newest is not None and newest["number"] > done:
                done = newest["number"]
                self._one_life(done, newest["port"])
            time.sleep(POLL_SECONDS)

    def _one_life(self, number: int, port: int) -> None:
        config, name = self._config, f"node-{self._rank}"
        tail = LogTail(self._run.train / "nodes" / f"{self._rank}.log")
        place = agent_place(config.launch, self._rank, port)
        with SupervisedProcess(
            [sys.executable, "-m", *trainer_command(self._run, config, place)],
            self._run.train / "nodes" / f"{self._rank}.log",
            trainer_environment(config),
            repository_root(),
            record=self._run.processes / f"{name}.json",
        ) as process:
            patience = LEAVE_SECONDS
            while (code := process.poll()) is None and patience > 0:
                self._beat()
                tail.show()
                if self._is_over(number):
                    patience -= POLL_SECONDS
                time.sleep(POLL_SECONDS)
        tail.show()
        if code is not None:
            error = tail.last_error()
            said = {"life": number, "code": code, "kind": error.kind, "text": error.text}
            self._board.put(f"ended/{self._token}", said)

    def _beat(self) -> None:
        self._board.count(f"beat/{self._token}", 1)

    def _is_over(self, number: int) -> bool:
        return int(self._board.read("over") or 0) >= number
