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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atelier.config.nodes_token import nodes_token
from atelier.config.paths import repository_root
from atelier.config.placement import training_gpus
from atelier.config.resolve import load_stage_config
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError, DataError, Stopped
from atelier.processes.gpus import claim_gpus
from atelier.processes.supervised import SupervisedProcess
from atelier.stages import quiet
from atelier.stages.log_tail import LogTail
from atelier.stages.nodes.board import (
    BEAT_SECONDS,
    SILENT_SECONDS,
    WAIT_SECONDS,
    WORDS,
    NodeGone,
)
from atelier.stages.nodes.likeness import differences, likeness
from atelier.stages.nodes.meeting import POLL_SECONDS, PROOF, REMIND_EVERY_SECONDS, agent_place
from atelier.stages.nodes.visitor import Visitor, why_silent
from atelier.stages.train import trainer_command, trainer_environment
from atelier.tracking.run_directory import RunDirectory, read_json_object

logger = logging.getLogger(__name__)

# A file on a network disk is seen by other machines some seconds after it was written.
SHARED_SECONDS = 60.0
# How long ranks may take to end by themselves once they have on node 0.
LEAVE_SECONDS = 10.0
# In which the seat of a node that was killed becomes free.
SEAT_SECONDS = SILENT_SECONDS + 20.0


def help_train(address: str, port: int, rank: int | None = None, wait: float = WAIT_SECONDS) -> int:
    """Train with the run that meets at an address, from when it is there until it is done.

    To be called in the main thread: only there does a stop reach it.

    Args:
        rank: which node this is to be, from 1 on; None: the next one that is missing.
        wait: seconds that node 0 may take until it trains.

    Returns:
        The exit code of node 0's training.

    Raises:
        ConfigError: the run, its directory, its code or packages are not the same here, the rank
            is none or taken, or the token is another; or, before node 0 is waited for, there is
            no token, and an address of other machines.
        PlanError, Stopped: this machine has too few GPUs, or they, or node 0, were not there in
            time; or another one came in its place while nothing was heard of it.
        NodeGone: node 0 is not there any more.
    """
    quiet.libraries_by_default()
    token = nodes_token(address, "--address")
    _wait_for(address, port, wait)
    with Visitor(address, port, token) as board:
        told = board.run
        _require_rank(rank, told["nodes"])
        run = _shared_directory(told)
        config = load_stage_config(run.config("train"))
        _require_likeness(told, config)
        with contextlib.chdir(repository_root()):
            claim_gpus(training_gpus(config), wait=config.launch.wait_for_gpus)
            with _seat(board, told["nodes"], rank) as (own, seated):
                logger.info("node %d of %d: training %s", own, told["nodes"], run.root.name)
                return _Helper(board, run, config, own, seated).help()


def _wait_for(address: str, port: int, wait: float) -> None:
    said, began = -REMIND_EVERY_SECONDS, time.monotonic()
    while (why := why_silent(address, port)) is not None:
        waited = time.monotonic() - began
        if waited > wait:
            raise Stopped(
                f"node 0 does not train at {address}:{port} ({why}) after {wait:g} s; give its "
                "launch.master_address and launch.master_port, or wait longer for it (--wait)"
            )
        if waited - said > REMIND_EVERY_SECONDS:
            said = waited
            logger.info("waiting for node 0 to train at %s:%d (%s)", address, port, why)
        time.sleep(BEAT_SECONDS)


def _require_rank(rank: int | None, nodes: int) -> None:
    if rank is not None and not 0 < rank < nodes:
        raise ConfigError(
            f"launch.node_rank: {rank} is none of those that help a run of launch.nodes {nodes}: "
            f"1 to {nodes - 1}; give one of them, or none to be the next that is missing"
        )


def _require_likeness(told: dict[str, Any], config: RunConfig) -> None:
    found = differences(told["likeness"], likeness(config))
    if found:
        raise ConfigError(f"this node is not as node 0: {'. '.join(found)}")


def _shared_directory(told: dict[str, Any]) -> RunDirectory:
    """The run's directory, proven to be the one that node 0 writes.

    Raises:
        ConfigError: it is another one, or none.
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
    return run


def _proof(run: RunDirectory) -> Any:
    with contextlib.suppress(DataError):
        return read_json_object(run.processes / PROOF).get("proof")
    return None


@contextmanager
def _seat(board: Visitor, nodes: int, rank: int | None) -> Iterator[tuple[int, str]]:
    """Be one of the nodes, inside: its rank, and the token that stands for this process."""
    token = uuid.uuid4().hex
    own = _take_seat(board, list(range(1, nodes)) if rank is None else [rank], token)
    try:
        yield own, token
    finally:
        with contextlib.suppress(NodeGone):
            board.remove_if(f"seat/{own}", token)


def _take_seat(board: Visitor, wanted: Sequence[int], token: str) -> int:
    """The rank of the first seat that is free.

    Raises:
        ConfigError: living nodes have them all. One that was killed has its seat until node 0
            notices, so that one is waited for.
    """
    before = _beats(board, wanted)
    deadline = time.monotonic() + SEAT_SECONDS
    said = False
    while True:
        board.count(f"beat/{token}", 1)
        for rank in wanted:
            if board.put_first(f"seat/{rank}", token):
                return rank
        now = _beats(board, wanted)
        all_live = all(now.get(one, 0) > beats for one, beats in before.items())
        if all_live or time.monotonic() > deadline:
            which = " and ".join(f"node {one}" for one in wanted)
            raise ConfigError(
                f"launch.node_rank: {which} of this run {'is' if len(wanted) == 1 else 'are'} "
                "there already: launch.nodes says how many there are"
            )
        if not said:
            logger.info("waiting for the place of a node of which nothing is heard")
            said = True
        time.sleep(BEAT_SECONDS)


def _beats(board: Visitor, ranks: Sequence[int]) -> dict[str, int]:
    """The counters of those who have these seats, by token."""
    tokens = [board.read(f"seat/{one}") for one in ranks]
    return {one: board.count(f"beat/{one}") for one in tokens if one is not None}


class _Helper:
    """Runs this node's agent in each life of the trainer."""

    def __init__(
        self, board: Visitor, run: RunDirectory, config: RunConfig, rank: int, token: str
    ) -> None:
        self._board, self._run, self._config = board, run, config
        self._rank, self._token = rank, token
        self._closed: int | None = None

    def help(self) -> int:
        """Until node 0 closes; returns its exit code."""
        done = 0
        while not self._is_closed():
            newest = self._board.read("life")
            if newest is not None and newest["number"] > done:
                done = newest["number"]
                if newest["crew"].get(str(self._rank)) == self._token:  # else it began without us
                    self._one_life(done, newest["id"])
            time.sleep(POLL_SECONDS)
        assert self._closed is not None
        return self._closed

    def _one_life(self, number: int, life: str) -> None:
        config, name = self._config, f"node-{self._rank}"
        tail = LogTail(self._run.train / "nodes" / f"{self._rank}.log")
        place = agent_place(config.launch, self._rank, life)
        with SupervisedProcess(
            [sys.executable, "-m", *trainer_command(self._run, config, place)],
            self._run.train / "nodes" / f"{self._rank}.log",
            trainer_environment(config),
            repository_root(),
            record=self._run.processes / f"{name}.json",
        ) as process:
            patience = LEAVE_SECONDS
            while (code := process.poll()) is None and patience > 0:
                tail.show()
                if self._is_closed() or self._is_over(number):
                    patience -= POLL_SECONDS
                time.sleep(POLL_SECONDS)
        tail.show()
        if code is not None and self._closed is None:
            error = tail.last_error()
            words = {"kind": error.kind, "text": error.text[-WORDS:]}
            self._board.put(f"ended/{self._token}", {"life": number, "code": code, **words})

    def _is_closed(self) -> bool:
        """Whether node 0 is done; until then it is told that this node lives. It need not answer
        any more after it has said so."""
        if self._closed is None:
            self._board.count(f"beat/{self._token}", 1)
            self._closed = self._board.read("closed")
            if self._closed is None:
                self._keep_seat()
        return self._closed is not None

    def _keep_seat(self) -> None:
        """Sit down again where node 0 freed the seat, because this process was suspended.

        Raises:
            Stopped: another one has it.
        """
        if not self._board.put_first(f"seat/{self._rank}", self._token):
            raise Stopped(
                f"nothing was heard of this node for more than {SILENT_SECONDS:g} s, and another "
                f"one is node {self._rank} of the run now; to help again, start this one again"
            )

    def _is_over(self, number: int) -> bool:
        return int(self._board.read("over") or 0) >= number
