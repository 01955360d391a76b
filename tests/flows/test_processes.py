"""Supervised programs: their exit codes arrive, and none survives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from atelier.processes.supervised import SupervisedProcess
from tests.flows.conftest import ROOT, wait_for_end

# A rank that says who it is and ignores SIGTERM, as a busy or stuck one would.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"rank-{os.environ['RANK']}", "w").close()
time.sleep(120)
"""
EXITING = "import os, sys; sys.exit(int(sys.argv[1 + int(os.environ['RANK'])]))"
OWNER = """
import os, sys, time
from pathlib import Path
from atelier.processes.supervised import SupervisedProcess
here = Path.cwd()
with SupervisedProcess(sys.argv[1:], here / "log", os.environ, here) as process:
    while process.poll() is None:
        time.sleep(0.1)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that every process of the test names in its environment."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "exiting.py").write_text(EXITING)
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{tmp_path}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")
    return tmp_path


def torchrun(ranks: int, *arguments: str) -> list[str]:
    return ["atelier.processes.torchrun", "--nproc-per-node", str(ranks), *arguments]


def start(place: Path, *arguments: str) -> SupervisedProcess:
    return SupervisedProcess(arguments, place / "log", os.environ, place)


def wait(process: SupervisedProcess, condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None or condition(), "it ended early"
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("codes", "expected"), [(["75"], 75), (["0"], 0), (["2", "0"], 2)])
def test_the_ranks_exit_code_is_the_programs(place: Path, codes: list[str], expected: int):
    with start(place, *torchrun(len(codes), "exiting", *codes)) as process:
        wait(process, lambda: process.poll() is not None)
        assert process.poll() == expected


def test_stop_ends_ranks_that_ignore_sigterm(place: Path):
    with start(place, *torchrun(2, "stubborn")) as process:
        wait(process, lambda: len(list(place.glob("rank-*"))) == 2)
        ranks = psutil.Process(process.pid).children(recursive=True)
        assert len(ranks) == 2
        started = time.monotonic()
        process.stop()
    assert time.monotonic() - started < 15
    assert not any(rank.is_running() for rank in ranks)


@pytest.mark.parametrize("victim", ["agent", "owner"])
def test_ranks_do_not_survive_a_killed_agent_or_owner(place: Path, victim: str):
    script = place / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen([sys.executable, script, *torchrun(2, "stubborn")], cwd=place)
    try:
        deadline = time.monotonic() + 60
        while len(list(place.glob("rank-*"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (agent,) = psutil.Process(owner.pid).children()
        os.kill(agent.pid if victim == "agent" else owner.pid, signal.SIGKILL)
        owner.wait(timeout=30)
        left = [p for p in wait_for_end(place, 15) if p.pid != os.getpid()]
        assert left == []
    finally:
        owner.kill()
        owner.wait()
