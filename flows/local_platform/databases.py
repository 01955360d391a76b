"""The databases of Prefect and MLflow, made before there is anything in them.

    python -m flows.local_platform.databases

Each is some hundred statements, six seconds of a core. `make setup` makes them once; without it the
first run does, and waits. Done again, it brings them up to date.
"""

from __future__ import annotations

import os
import subprocess
import sys

from atelier.config.paths import repository_root
from atelier.tracking.mlflow_mirror.store import client
from atelier.tracking.mlflow_store import project_uri, sqlite_path
from flows.local_platform.environment import chosen_api_url, settle


def make_databases() -> None:
    """Those that are files here; whoever has a server of their own has its database.

    Raises:
        CalledProcessError: Prefect could not make its own; it has said why.
    """
    settle()
    if chosen_api_url() is None:
        _make_prefects()
    uri = project_uri()
    if sqlite_path(uri) is not None:
        client(uri)


def _make_prefects() -> None:
    prefect = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    environment = {**os.environ, "PREFECT_LOGGING_LEVEL": "ERROR"}
    subprocess.run(
        prefect, env=environment, cwd=repository_root(), stdout=subprocess.DEVNULL, check=True
    )


if __name__ == "__main__":
    make_databases()
