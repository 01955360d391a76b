"""Two nodes are one with two ranks; and where a part of one is killed, all of the other ends.

Nodes are programs as a user starts them, here on one machine, with an agent of torchrun each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from atelier.config.paths import repository_root
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import latest_checkpoint
from tests.flows.conftest import processes_of, wait_for_end
from tests.support.finished_runs import assert_equal, final
from tests.support.free_ports import meeting_port
from tests.support.runs import environment, make_run, metrics, train

pytestmark = pytest.mark.slow

SECONDS = 300.0
# Programs whose ranks are light and that no MLflow follows: to import a model and it would take
# longer than all they are to show.
LIGHT = """
import runpy, sys
from atelier.stages import mirroring, train
mirroring.follow = lambda run: None
train.trainer_command = lambda run, config, place: [
    "atelier.processes.torchrun", *place, "tests.support.light_ranks", str(run.root)
]
"""
PROGRAM = "runpy.run_module('atelier', run_name='__main__')"
# A node as a flow run, with a server of its own.
FLOW = """
from flows.local_platform.server import prefect_server
from flows.node import node
with prefect_server():
    print(node("127.0.0.1", int(sys.argv[1]), return_state=True).name)
"""
SHAPE = ("train.steps=8", "train.checkpoint_every=1", "train.adam_epsilon=1e-3")


@pytest.fixture(scope="module", name="one_node")
def _one_node(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = make_run(tmp_path_factory.mktemp("one"), SHAPE)
    train(run, 2)
    return run


class Nodes:
    """Two nodes of a run, in a folder of their own."""

    def __init__(self, folder: Path, *overrides: str, light: bool = False) -> None:
        self.folder, self.port, self._is_light = folder, meeting_port(), light
        uri = f"tracking.mlflow_uri=sqlite:///{folder / 'mlflow.db'}"
        nodes = ("launch.nodes=2", f"launch.master_port={self.port}")
        self.run = make_run(folder / "run", (*SHAPE, *nodes, uri, *overrides))

    def first(self) -> subprocess.Popen[str]:
        return self._atelier("stage", "train", "--run", str(self.run.root))

    def other(self) -> subprocess.Popen[str]:
        address = ("--address", "127.0.0.1", "--port", str(self.port))
        return self._atelier("node", *address)

    def other_as_flow(self) -> subprocess.Popen[str]:
        home = str(self.folder / "prefect")
        return self._start("-c", LIGHT + FLOW, str(self.port), PREFECT_HOME=home)

    def _atelier(self, *words: str) -> subprocess.Popen[str]:
        start = ("-c", LIGHT + PROGRAM) if self._is_light else ("-m", "atelier")
        return self._start(*start, *words)

    def _start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(repository_root() / "src"), str(repository_root())])
        return subprocess.Popen(
            [sys.executable, *words],
            env=environment(PYTHONPATH=path, PLACE=str(self.folder), **variables),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def light(self) -> Path:
        """What light ranks write."""
        return self.run.root / "light"

    def wait_for_ranks(self) -> None:
        """Until both light ranks of a life are up."""
        deadline = time.monotonic() + SECONDS
        while sum(psutil.pid_exists(int(one.suffix[1:])) for one in self.light.glob("up.*")) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def agent(self, rank: int) -> psutil.Process:
        """The torchrun of a node, once the first step of the run is saved."""
        deadline = time.monotonic() + SECONDS
        while latest_checkpoint(self.run.checkpoints) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (found,) = [
            one
            for one in processes_of(self.folder)
            if f"--node-rank {rank} " in " ".join(one.cmdline())
            and "atelier.processes.torchrun" in one.cmdline()[:4]
        ]
        return found


@pytest.fixture(name="nodes")
def _nodes(tmp_path: Path) -> Iterator[list[Nodes]]:
    """Whatever a test starts; nothing of it may be left."""
    made: list[Nodes] = []
    yield made
    left = [one for nodes in made for one in wait_for_end(nodes.folder)]
    for one in left:
        one.kill()
    assert not left, f"still alive: {left}"


def ends(process: subprocess.Popen[str], code: int) -> str:
    words, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == code, words
    return words


def test_two_nodes_are_one_with_two_ranks_also_after_an_agent_was_killed(
    one_node: RunDirectory, nodes: list[Nodes], tmp_path: Path
) -> None:
    """The kill costs both a restart and no number. The second node is started by a launcher, whose
    command is the other's own."""
    nodes.append(two := Nodes(tmp_path, "launch.launcher=[env]"))
    first = two.first()
    two.agent(1).kill()
    assert "restart 1 of 2" in ends(first, 0)
    assert_equal(final(one_node), final(two.run))
    assert metrics(one_node) == metrics(two.run)
    said = (two.run.train / "nodes/launcher.log").read_text()
    assert "node 1 of 2: training" in said
    assert "node 0 is done with training (exit code 0)" in said


def test_a_node_that_is_killed_ends_the_other_and_the_run_goes_on(
    nodes: list[Nodes], tmp_path: Path
) -> None:
    """First the one that helps, then node 0; at last the helper is a flow run."""
    nodes.append(two := Nodes(tmp_path, "launch.max_restarts=0", light=True))
    first, other = two.first(), two.other()
    two.wait_for_ranks()
    other.kill()
    other.communicate()
    assert "launch.max_restarts=0" in ends(first, 1)
    assert wait_for_end(two.folder) == []

    first, other = two.first(), two.other()
    two.wait_for_ranks()
    first.kill()
    first.communicate()
    assert "node 0 does not answer any more" in ends(other, 1)
    assert wait_for_end(two.folder) == []

    (two.light / "done").touch()
    first, other = two.first(), two.other_as_flow()
    ends(first, 0)
    assert ends(other, 0).splitlines()[-1] == "Completed"
