"""A run on the real platform, killed at random moments and retried, ends as if undisturbed.

Minutes long, so it runs where ATELIER_KILLS says how often to kill (10, say; the kinds take turns);
ATELIER_KILLS_SEED says which moments are drawn.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.local_platform.loopback import free_port
from tests.flows.conftest import Place, processes_of, wait_for_end
from tests.support.metric_rows import results

VICTIMS = ("trainer", "flow", "worker", "machine")
KILLS = int(os.environ.get("ATELIER_KILLS", 0))
SEED = int(os.environ.get("ATELIER_KILLS_SEED", 0))
# Long enough that no run is done before its last kill.
SETTINGS = (f"train.steps={3 * max(KILLS, 4)}", "train.evaluate_every=6", "launch.max_restarts=100")
# Of a disturbed attempt: long enough to reach any stage, short enough to lie in its middle.
LONGEST_WAIT = 25.0


@dataclass(frozen=True)
class OnPlatform:
    """A place with `atelier up`, driven by the command lines a user has."""

    place: Place
    environment: dict[str, str]

    def call(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            env=self.environment,
            cwd=self.place.root,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def up(self) -> None:
        self.call("atelier", "up")

    def down(self) -> None:
        self.call("atelier", "down", "--force", check=False)

    def submit(self) -> str:
        parameters = {"recipe": "tiny/base", "overrides": self.place.settings(*SETTINGS)}
        text = json.dumps(parameters)
        output = self.call("prefect", "deployment", "run", "grpo/full", "--params", text)
        return next(line.split()[-1] for line in output.splitlines() if "UUID" in line)

    def retry(self, run: str) -> None:
        self.call("prefect", "flow-run", "retry", run)

    def state(self, run: str) -> str:
        from prefect.client.orchestration import SyncPrefectClient

        with SyncPrefectClient(self.environment["PREFECT_API_URL"]) as client:
            state = client.read_flow_run(run).state
            return str(state.type.value) if state is not None else ""

    def wait_for(self, run: str, *states: str, seconds: float = 1800.0) -> str:
        deadline = time.monotonic() + seconds
        while (state := self.state(run)) not in states:
            assert time.monotonic() < deadline, f"{state}, and not one of {states}"
            time.sleep(0.5)
        return state

    def find(self, victim: str) -> list[psutil.Process]:
        """Those to kill. A machine that goes down takes everything at once."""
        everything = processes_of(self.place.root)
        marks = {
            "trainer": "atelier.training",
            "flow": "prefect.engine",
            "worker": "worker",
        }
        if victim == "machine":
            return everything
        others = "atelier.processes.guard"
        return [
            one
            for one in everything
            if marks[victim] in (command := _command(one)) and others not in command
        ]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[OnPlatform]:
    place = Place(tmp_path)
    own = {
        "PREFECT_API_URL": f"http://127.0.0.1:{free_port()}/api",
        "ATELIER_MLFLOW_PORT": str(free_port()),
        "MLFLOW_TRACKING_URI": place.mlflow_uri,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }
    started = OnPlatform(place, {**place.environment, **own})
    try:
        started.up()
        yield started
    finally:  # also of an `up` that failed half-way
        started.down()
    left = wait_for_end(tmp_path)
    for process in left:
        process.kill()
    assert not left, [process.cmdline() for process in left]


@pytest.mark.skipif(KILLS == 0, reason="set ATELIER_KILLS=10: ten kills take minutes")
def test_a_run_killed_at_random_moments_ends_as_if_undisturbed(platform: OnPlatform):
    undisturbed = platform.submit()
    assert platform.wait_for(undisturbed, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED"

    draws = random.Random(SEED)
    order = [VICTIMS[i % len(VICTIMS)] for i in range(KILLS)]
    draws.shuffle(order)
    run = platform.submit()
    told = []
    for victim in order:
        seconds = draws.uniform(2.0, LONGEST_WAIT)
        told.append(f"{victim} after {seconds:.1f} s in {_stage(platform.place.runs / run)}")
        state = _kill_after(platform, run, victim, seconds)
        assert state != "COMPLETED", (told, "it was done before: it needs more steps")
    assert platform.wait_for(run, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED", told

    for name, value in _outcome(platform.place.runs / undisturbed).items():
        assert _outcome(platform.place.runs / run)[name] == value, (name, told)
    sys.stdout.write("\n".join(told) + "\n")


def _kill_after(platform: OnPlatform, run: str, victim: str, seconds: float) -> str:
    """Let the run go on for a while, kill -9, and see to it that it can go on."""
    platform.wait_for(run, "RUNNING", "COMPLETED")
    time.sleep(seconds)
    if platform.state(run) == "COMPLETED":
        return "COMPLETED"
    for process in platform.find(victim):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    if victim == "machine":
        platform.up()
    if victim in ("flow", "machine"):
        if platform.wait_for(run, "CRASHED", "COMPLETED") == "COMPLETED":
            return "COMPLETED"
        platform.retry(run)
    return platform.state(run)


def _stage(run: Path) -> str:
    started = [path.parent for path in run.glob("*/stage.json")]
    return max(started, key=lambda one: (one / "stage.json").stat().st_mtime, default=run).name


def _outcome(run: Path) -> dict[str, Any]:
    """What must be equal: metrics without timings, weights, scores."""
    checkpoint = sorted((run / "train/checkpoints").glob("step-*"))[-1]
    files = [
        *checkpoint.glob("*.safetensors"),
        *run.glob("export/merged/transformer/*.safetensors"),
    ]
    assert len(files) >= 4
    return {
        "metrics": results((run / "train/metrics.jsonl").read_text().splitlines()),
        "weights": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "scores": (run / "evaluate/scores.jsonl").read_text(),
    }
