"""Guarded programs: their exit codes arrive, and nothing of them survives, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from atelier.processes.leftovers import clean_up
from atelier.processes.records import is_alive
from atelier.processes.supervised import SupervisedProcess
from tests.flows.conftest import ROOT, wait_for_end
from tests.support.patience import FOR_EVER, at_once

# A rank that says who it is and ignores SIGTERM, as a busy or stuck one would.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"rank-{os.environ['RANK']}", "w").close()
time.sleep(120)
"""
EXITING = "import os, sys; sys.exit(int(sys.argv[1 + int(os.environ['RANK'])]))"
# A program whose child has left its session and its parent behind, as a daemon does.
DAEMONIC = """
import os, subprocess, sys, time
child = [sys.executable, "stubborn.py"]
parent = f"import subprocess; subprocess.Popen({child!r}, start_new_session=True)"
subprocess.Popen([sys.executable, "-c", parent], env={**os.environ, "RANK": "0"})
while not os.path.exists("rank-0"):
    time.sleep(0.02)
if len(sys.argv) > 1:
    time.sleep(120)
"""
OWNER = """
import os, sys, time
from pathlib import Path
from atelier.processes.supervised import SupervisedProcess
here = Path.cwd()
with SupervisedProcess(sys.argv[1:], here / "log", os.environ, here, grace=2) as process:
    while process.poll() is None:
        time.sleep(0.1)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that every process of the test names in its environment."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "exiting.py").write_text(EXITING)
    (tmp_path / "daemonic.py").write_text(DAEMONIC)
    monkeypatch.setenv("PLACE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{tmp_path}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")
    return tmp_path


def torchrun(ranks: int, *arguments: str) -> list[str]:
    agent = [sys.executable, "-m", "atelier.processes.torchrun"]
    return [*agent, "--nproc-per-node", str(ranks), *arguments]


def start(place: Path, *command: str, **options) -> SupervisedProcess:
    return SupervisedProcess(command, place / "log", os.environ, place, **options)


def record(place: Path) -> dict:
    return json.loads((place / "processes/log.json").read_text())


def wait(process: SupervisedProcess, condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None or condition(), "it ended early"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ranks_are_up(place: Path, count: int) -> bool:
    return len(list(place.glob("rank-*"))) == count


@pytest.mark.parametrize(("codes", "expected"), [(["75"], 75), (["0"], 0), (["2", "0"], 2)])
def test_the_ranks_exit_code_is_the_programs(
    place: Path, monkeypatch, codes: list[str], expected: int
):
    temporary = place / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with start(place, *torchrun(len(codes), "exiting", *codes)) as process:
        wait(process, lambda: process.poll() is not None)
        assert process.poll() == expected
    assert record(place)["ended"] == "ended"
    assert record(place)["exit_code"] == expected
    assert list(temporary.iterdir()) == []


def test_a_program_that_does_not_exist_says_so(place: Path):
    with start(place, "no-such-program") as process:
        wait(process, lambda: process.poll() is not None)
        assert process.poll() == 127
    assert "no-such-program cannot be started" in (place / "log").read_text()


def test_stop_ends_ranks_that_ignore_sigterm(place: Path):
    with start(place, *torchrun(2, "stubborn"), grace=2) as process:
        wait(process, lambda: ranks_are_up(place, 2))
        with at_once():
            process.stop()
    assert process.poll() == 143
    assert wait_for_end(place, 0) == []
    assert record(place)["ended"] == "terminated"
    assert record(place)["asked"] == 3


def test_stop_with_a_shorter_grace_kills_at_once(place: Path):
    with start(place, *torchrun(1, "stubborn"), grace=FOR_EVER) as process:
        wait(process, lambda: ranks_are_up(place, 1))
        with at_once():
            process.stop(grace=0.5)
    assert wait_for_end(place, 0) == []


@pytest.mark.parametrize("lives_on", ["yes", "no"])
def test_a_daemonic_grandchild_does_not_escape(place: Path, lives_on: str):
    """Neither when the program is stopped nor when it ends and leaves the grandchild behind."""
    stays = ["stay"] if lives_on == "yes" else []
    with start(place, sys.executable, "daemonic.py", *stays, grace=1) as process:
        wait(process, lambda: ranks_are_up(place, 1))
        if lives_on == "no":
            wait(process, lambda: process.poll() is not None)
            assert process.poll() == 0
    assert wait_for_end(place, 0) == []


@pytest.mark.parametrize("victim", ["agent", "guard", "owner", "owner and guard"])
def test_ranks_survive_nobody_who_is_killed(place: Path, victim: str):
    """Ranks in sessions of their own, whose agent is killed hard."""
    script = place / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen([sys.executable, script, *torchrun(2, "stubborn")], cwd=place)
    try:
        deadline = time.monotonic() + 60
        while not ranks_are_up(place, 2):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (guard,) = psutil.Process(owner.pid).children()
        (agent,) = guard.children()
        victims = {"agent": agent, "guard": guard, "owner": owner}
        for name in victim.split(" and "):
            os.kill(victims[name].pid, signal.SIGKILL)
        owner.wait(timeout=30)
        assert wait_for_end(place, 15) == []
    finally:
        owner.kill()
        owner.wait()


def test_clean_up_ends_what_a_killed_guard_left(place: Path):
    """A daemon is beyond the kernel's parent-death signal: its token finds it."""
    with start(place, sys.executable, "daemonic.py", "stay") as process:
        wait(process, lambda: ranks_are_up(place, 1))
        guard = record(place)["guard"]
        os.kill(process.pid, signal.SIGKILL)
        while is_alive(guard):
            time.sleep(0.02)
        assert len(wait_for_end(place, 1)) == 1  # the daemon; the program died with the guard
        (line,) = clean_up(place)
        assert "ended 1 processes" in line
        assert wait_for_end(place, 2) == []
        assert clean_up(place) == []


def test_clean_up_waits_for_a_guard_that_is_ending_its_program(place: Path):
    script = place / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen([sys.executable, script, *torchrun(1, "stubborn")], cwd=place)
    try:
        deadline = time.monotonic() + 60
        while not ranks_are_up(place, 1):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        owner.kill()
        owner.wait()
    assert len(wait_for_end(place, 0)) == 2  # the guard and a program that ignores SIGTERM
    assert clean_up(place) == []
    assert wait_for_end(place, 1) == []


def test_clean_up_leaves_the_living_alone(place: Path):
    with start(place, sys.executable, "-c", "import time; time.sleep(60)") as process:
        wait(process, (place / "processes/log.json").exists)
        assert clean_up(place) == []
        assert process.poll() is None


def test_a_guard_of_the_program_alone_spares_its_children(place: Path):
    """A worker's flow runs outlive the worker on purpose."""
    with start(place, sys.executable, "daemonic.py", "stay", descendants=False) as process:
        wait(process, lambda: ranks_are_up(place, 1))
    (left,) = wait_for_end(place, 1)
    left.kill()
    assert wait_for_end(place, 5) == []
