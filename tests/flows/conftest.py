"""One real pipeline on the smallest model, started as a user starts it, for several tests.

Everything is real: a temporary Prefect server, torchrun, the trainer, OCR, a SQLite MLflow store,
the export's reload in a clean process. State lies in a temporary directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.runs import SETTINGS, untrained_pipeline
from tests.support.secrets import SECRETS

ROOT = Path(__file__).parents[2]
SMALL = (
    *SETTINGS,
    "train.steps=6",
    "train.evaluate_every=3",
    "train.learning_rate=3e-3",
    "data.train_prompts=16",
    "data.heldout_prompts=8",
    "evaluation.prompts=8",
    "evaluation.periodic_prompts=4",
    "evaluation.num_inference_steps=4",
    "evaluation.bootstrap_samples=200",
    "export.verify_prompts=1",
    "tracking.images=4",
)


@dataclass(frozen=True)
class Place:
    """A directory that stands for a user's project state: runs, Prefect's home, MLflow's store."""

    root: Path

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def mlflow_uri(self) -> str:
        return f"sqlite:///{self.root / 'mlflow' / 'mlflow.db'}"

    @property
    def environment(self) -> dict[str, str]:
        own = {"PREFECT_HOME": str(self.root / "prefect"), "ATELIER_RUNS": str(self.runs)}
        own["ATELIER_DATA"] = str(self.root / "data")
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        kept = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
        fixed = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        return {**kept, **SECRETS, **own, **fixed}

    def settings(self, *overrides: str) -> list[str]:
        own = (f"policy.path={untrained_pipeline()}", f"tracking.mlflow_uri={self.mlflow_uri}")
        return [*SMALL, *own, *overrides]

    def command(self, *arguments: str, overrides: tuple[str, ...] = ()) -> list[str]:
        sets = [part for one in self.settings(*overrides) for part in ("--set", one)]
        return [sys.executable, "-m", "atelier", "run", "--recipe", "tiny/base", *sets, *arguments]

    def resume(self, run: Path, *overrides: str) -> list[str]:
        """The command that goes on with a run, here with its own MLflow store."""
        own = (f"tracking.mlflow_uri={self.mlflow_uri}", *overrides)
        sets = [part for one in own for part in ("--set", one)]
        return [sys.executable, "-m", "atelier", "run", "--resume", run.name, *sets]

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def only_run(self) -> Path:
        (found,) = self.runs.iterdir()
        return found


@dataclass(frozen=True)
class Finished:
    """A pipeline that ran to its end."""

    place: Place
    run: Path
    process: subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A whole pipeline whose trainer was killed (SIGKILL) after its second step, which must not
    show in anything but a line on the console and a `resumed` event."""
    place = Place(tmp_path_factory.mktemp("finished"))
    killer = threading.Thread(target=kill_trainer_after_step, args=(place, 2), daemon=True)
    killer.start()
    process = place.run(place.command("--name", "first"))
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return Finished(place, place.only_run(), process)


def kill_trainer_after_step(place: Place, step: int, seconds: float = 500.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for metrics in place.runs.glob("*/train/metrics.jsonl"):
            if len(metrics.read_text().splitlines()) >= step:
                for process in processes_of(place.root):
                    if "atelier.processes.torchrun" in process.cmdline():
                        process.kill()
                return
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place of one's own; nothing that was started in it may outlive the test."""
    yield Place(tmp_path)
    _require_no_process(tmp_path)


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Iterator[Finished]:
    """The finished run and Prefect's state, copied: to be resumed with another configuration, which
    leaves its first stages as they are and its Prefect home warm."""
    for name in ("runs", "prefect"):
        shutil.copytree(finished.place.root / name, tmp_path / name)
    place = Place(tmp_path)
    yield Finished(place, place.only_run(), finished.process)
    _require_no_process(tmp_path)


def _require_no_process(folder: Path) -> None:
    left = wait_for_end(folder)
    for process in left:
        process.kill()
    assert not left, f"still alive: {[process.cmdline() for process in left]}"


def processes_of(folder: Path) -> list[psutil.Process]:
    """Living processes that were started for a place: their environment names it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(
                value.startswith(str(folder)) for value in process.environ().values()
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_for_end(folder: Path, seconds: float = 20.0) -> list[psutil.Process]:
    """What is still alive of a place after a while."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
