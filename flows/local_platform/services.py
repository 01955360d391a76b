"""The programs a platform consists of: what starts each, and where it writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atelier.config.paths import repository_root
from atelier.processes.supervised import SupervisedProcess
from atelier.tracking.mlflow_store import artifacts_beside, sqlite_path
from flows.local_platform.environment import for_services
from flows.local_platform.loopback import HOST
from flows.local_platform.server import server_command, server_environment
from flows.local_platform.state import logs

WORK_POOL = "atelier"
NODES_POOL = "atelier-nodes"  # served by workers on other machines (docs/many-machines.md)
WORKER = "atelier"
# Between two looks for new flow runs. Prefect's ten are long for somebody who watches.
WORKER_QUERY_SECONDS = "3"


@dataclass(frozen=True)
class Service:
    """A program that runs as long as the platform.

    Attributes:
        descendants: whether what it started ends with it.
        stop_seconds: between SIGTERM and SIGKILL.
    """

    name: str
    command: list[str]
    environment: Mapping[str, str]
    cwd: Path
    descendants: bool = True
    stop_seconds: float = 3.0

    @property
    def log(self) -> Path:
        return logs() / f"{self.name}.log"

    def start(self) -> SupervisedProcess:
        # Guards' records of what may be killed as a leftover lie in processes/, and only those.
        folder = logs() / "processes" if self.descendants else logs()
        return SupervisedProcess(
            self.command,
            self.log,
            self.environment,
            self.cwd,
            record=folder / f"{self.name}.json",
            grace=self.stop_seconds,
            descendants=self.descendants,
        )


def prefect_server(api_url: str) -> Service:
    """The API, its background services and the UI."""
    environment = server_environment(api_url, ui=True)
    return Service("server", server_command(api_url), environment, repository_root())


def prefect_worker(api_url: str) -> Service:
    """Starts the flow runs of the work pool, each in a session of its own.

    They are not its descendants to kill: a training run must not end because the worker died. A
    worker that is told to stop tells its flow runs, and they end as crashed, to be retried.
    """
    command = [sys.executable, "-m", "flows.local_platform.worker", "start", "--type", "process"]
    names = ["--pool", WORK_POOL, "--name", WORKER, "--install-policy", "never"]
    environment = {
        "PREFECT_WORKER_QUERY_SECONDS": WORKER_QUERY_SECONDS,
        **for_services(api_url),
    }
    return Service("worker", [*command, *names], environment, repository_root(), descendants=False)


def mlflow_ui(uri: str, port: int) -> Service:
    """The MLflow UI on a SQLite store.

    One worker and no job runner: MLflow's defaults are ten processes and 2 GB.
    """
    database = sqlite_path(uri)
    assert database is not None
    store = ["--backend-store-uri", uri, "--artifacts-destination", artifacts_beside(database)]
    address = ["--host", HOST, "--port", str(port), "--workers", "1"]
    quiet = ["--uvicorn-opts", "--log-level warning"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", *store, *address, *quiet]
    # Its folder is the store's: MLflow would leave files of its own in the repository's root.
    return Service("mlflow", command, environment, database.parent)
