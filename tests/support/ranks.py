"""Ranks of a training run, each a process of its own, forked from one that has imported everything.

Three steps of the smallest run take a second of a slow core, the imports fifteen. What a rank does
is what `python -m atelier.training` does; how the pipeline starts it is tested in tests/flows.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from atelier.config.sections.launch import LaunchConfig
from atelier.training.distributed import World, join_world
from flows.local_platform.loopback import free_port

WARM = [
    "deepspeed",
    "atelier.training.worker",
    "atelier.policies.sd3.policy",
    "atelier.policies.janus.policy",
    "atelier.rewards.scorers.ocr_engine",
]
SECONDS = 300.0

Result = TypeVar("Result")


class Ranks:
    """The ranks of a run, started; they end at the latest with the process that started them.

    Args:
        arguments: of `python -m atelier.training`.
        processes: how many ranks.
        environment: variables they have beside ours.
    """

    def __init__(self, arguments: Sequence[str], processes: int, environment: dict[str, str]):
        context = _warm_context()
        self._folder = tempfile.TemporaryDirectory()
        self._output = Path(self._folder.name) / "output.txt"
        self._printed = ""
        self._ranks = []
        for place in _places(processes):
            own = {**os.environ, **environment, **place}
            one = context.Process(target=_rank, args=(arguments, own, self._output), daemon=True)
            one.start()
            self._ranks.append(one)

    @property
    def are_running(self) -> bool:
        return all(one.exitcode is None for one in self._ranks)

    @property
    def output(self) -> str:
        """What they have printed."""
        if self._output.exists():
            self._printed = self._output.read_text()
        return self._printed

    def wait(self) -> list[int | None]:
        """Their exit codes. Those that a failed one left waiting are killed, and say so."""
        for one in self._ranks:
            one.join(SECONDS)
        self.kill()
        return [one.exitcode for one in self._ranks]

    def kill(self) -> None:
        """SIGKILL to all at once, until they are gone."""
        for one in self._ranks:
            one.kill()
        for one in self._ranks:
            one.join()
        self._printed = self.output
        self._folder.cleanup()


def on_ranks(function: Callable[[World], Result], processes: int) -> list[Result]:
    """What a function of a module gives on each of so many ranks that talk to each other (gloo)."""
    places = _places(processes)
    with ProcessPoolExecutor(processes, mp_context=_warm_context()) as pool:
        waiting = [pool.submit(_in_a_world, function, place) for place in places]
        return [one.result(SECONDS) for one in waiting]


def _in_a_world(function: Callable[[World], Result], place: dict[str, str]) -> Result:
    os.environ.update(place)
    with join_world(LaunchConfig(device="cpu", threads=1)) as world:
        return function(world)


def _warm_context() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(WARM)
    os.environ["DS_ACCELERATOR"] = "cpu"  # read when DeepSpeed is imported
    return context


def _places(processes: int) -> list[dict[str, str]]:
    """The variables that tell each rank where it is, as torchrun sets them."""
    group = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**group, "RANK": rank, "LOCAL_RANK": rank} for rank in map(str, range(processes))]


def _rank(arguments: Sequence[str], environment: dict[str, str], output: Path) -> None:
    from atelier.training.__main__ import main

    with output.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["python -m atelier.training", *arguments]
    sys.exit(main())
