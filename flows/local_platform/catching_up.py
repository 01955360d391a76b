"""MLflow's part of a platform that is not its UI: the store's creation, and runs it lacks."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path
from typing import IO

from atelier.config.paths import repository_root
from atelier.errors import DataError
from atelier.processes.supervised import SupervisedProcess
from atelier.stages.run_file import runs_root
from atelier.tracking.mlflow_store import creation_lock, sqlite_path
from atelier.tracking.run_directory import RunDirectory, read_json_object
from flows.local_platform.loopback import answers
from flows.local_platform.state import logs

# Sending what an outage kept back ends after this time, and goes on at the next `up`.
CATCH_UP_SECONDS = 900.0
MOST_RUNS = 50


class StoreCreation:
    """Holds the store's creation lock while the UI's first start creates the database, so that a
    run that starts at the same time waits instead of creating it too."""

    def __init__(self, uri: str, mlflow_url: str) -> None:
        self._database = sqlite_path(uri)
        self._health_url = f"{mlflow_url}/health"
        self._lock: IO[str] | None = None

    def tend(self) -> bool:
        """Whether the store is there; lets others in once it is."""
        if self._lock is not None and answers(self._health_url):
            self._release()
        return self._lock is None

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> StoreCreation:
        if self._database is not None and not self._database.exists():
            self._database.parent.mkdir(parents=True, exist_ok=True)
            self._lock = creation_lock(self._database).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        self._release()


class CatchingUp:
    """Sends MLflow, once and unhurried, what it lacks of earlier runs."""

    def __init__(self) -> None:
        self._process: SupervisedProcess | None = None
        self._until = 0.0
        self._begun = False

    def tend(self) -> None:
        if not self._begun:
            self._begun = True
            self._begin(runs_behind(runs_root()))
        elif self._process is not None:
            done = self._process.poll() is not None
            if done or time.monotonic() > self._until:
                self._end()

    def _begin(self, runs: list[RunDirectory]) -> None:
        if runs:
            mirror = [sys.executable, "-m", "atelier.tracking.mlflow_mirror"]
            command = ["nice", "-n", "15", *mirror, *(str(run.root) for run in runs[:MOST_RUNS])]
            log = logs() / "mirror.log"
            self._process = SupervisedProcess(command, log, os.environ, repository_root())
            self._until = time.monotonic() + CATCH_UP_SECONDS

    def _end(self) -> None:
        if self._process is not None:
            self._process.stop(1.0)
            self._process = None

    def __enter__(self) -> CatchingUp:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def runs_behind(folder: Path) -> list[RunDirectory]:
    """Runs that changed after the mirror last sent something of them; the newest first.

    It may name one too many (nothing is sent twice), and none too few.
    """
    runs = [RunDirectory(file.parent) for file in folder.glob("*/run.json")]
    behind = [run for run in runs if run.config("report").is_file() and _is_behind(run)]
    return sorted(behind, key=lambda run: run.run_file.stat().st_mtime, reverse=True)


def _is_behind(run: RunDirectory) -> bool:
    memory = run.root / "mlflow.json"
    try:
        sent, digest = read_json_object(memory), read_json_object(run.run_file)["digests"]["report"]
    except (DataError, KeyError):
        return True
    if sent.get("digest") != digest:
        return True
    written = [*run.root.glob("*/stage.json"), *run.train.glob("evaluation/*/*/summary.json")]
    if run.metrics.exists():
        written.append(run.metrics)
    return any(file.stat().st_mtime > memory.stat().st_mtime for file in written)
