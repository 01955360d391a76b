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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from atelier.stages.frame import read_record
from flows.local_platform.loopback import free_port
from tests.flows.conftest import Place, processes_of, wait_for_end
from tests.support.metric_rows import results

pytestmark = pytest.mark.slow

VICTIMS = ("trainer", "flow", "worker", "machine")
KILLS = int(os.environ.get("ATELIER_KILLS", 0))
SEED = int(os.environ.get("ATELIER_KILLS_SEED", 0))
STEPS = 2 * max(KILLS, 6)
SETTINGS = (f"train.steps={STEPS}", "train.evaluate_every=6", "launch.max_restarts=100")
# A moment is a run's progress (stages done, steps taken) and up to so many seconds: seconds alone
# would lie in the first stages where the machine is slow, and behind the last where it is fast.
BEFORE_TRAINING = 2  # prepare and baseline are done
LAST = BEFORE_TRAINING + STEPS + 2  # train and evaluate are done, export is not
MOST_SECONDS = 4.0
PATIENCE = 1200.0


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

    def wait_for(self, run: str, *states: str) -> str:
        self.wait_until(lambda: self.state(run) in states)
        return self.state(run)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "what should happen does not"
            time.sleep(0.2)

    def find(self, victim: str) -> list[psutil.Process]:
        """Those to kill. A machine that goes down takes everything at once."""
        everything = processes_of(self.place.root)
        marks = {
            "trainer": "atelier.training",
            "flow": "prefect.engine",
            "worker": "flows.local_platform.worker",
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

    run = platform.submit()
    directory = platform.place.runs / run
    told = []
    for progress, seconds, victim in _moments(random.Random(SEED)):
        platform.wait_until(partial(_has_reached, directory, progress))
        time.sleep(seconds)
        told.append(f"{victim} at {progress} + {seconds:.1f} s in {_stage(directory)}")
        _kill(platform, run, victim)
    assert platform.wait_for(run, "COMPLETED", "FAILED", "CRASHED") == "COMPLETED", told

    for name, value in _outcome(platform.place.runs / undisturbed).items():
        assert _outcome(directory)[name] == value, (name, told)
    sys.stdout.write("\n".join(told) + "\n")


def _moments(draws: random.Random) -> list[tuple[int, float, str]]:
    """Progress, seconds and victim of every kill, in the order in which they come."""
    moments = []
    for number in range(KILLS):
        victim = VICTIMS[number % len(VICTIMS)]
        first, last = (BEFORE_TRAINING, BEFORE_TRAINING + STEPS - 1)
        if victim != "trainer":
            first, last = 0, LAST
        moments.append((draws.randint(first, last), draws.uniform(0, MOST_SECONDS), victim))
    return sorted(moments)


def _has_reached(run: Path, progress: int) -> bool:
    """Whether so many stages are done and steps of training recorded, together."""
    records = [read_record(path.parent) for path in run.glob("*/stage.json")]
    done = sum(record is not None and record["status"] == "done" for record in records)
    metrics = run / "train/metrics.jsonl"
    steps = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    return done + steps >= progress


def _kill(platform: OnPlatform, run: str, victim: str) -> None:
    """kill -9, and see to it that the run can go on."""
    # Between two lives there may be none of the kind for some seconds.
    platform.wait_until(lambda: bool(platform.find(victim)))
    for process in platform.find(victim):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    if victim == "machine":
        platform.up()
    if victim in ("flow", "machine"):
        platform.wait_for(run, "CRASHED")
        platform.retry(run)
    platform.wait_for(run, "RUNNING")


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
