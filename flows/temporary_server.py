"""A Prefect server for the length of one command, where none is configured.

Prefect would start one itself, but in our process group: Ctrl-C would end it before the flow could
report its end, and a killed flow would leave it behind. Ours has a session of its own and dies with
us (atelier.processes). Its state stays in PREFECT_HOME, so the runs can be looked at later with
`prefect server start`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import prefect
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from atelier.config.paths import repository_root
from atelier.errors import AtelierError
from atelier.processes.supervised import SupervisedProcess

START_SECONDS = 120.0
STOP_SECONDS = 5.0


@contextmanager
def prefect_server() -> Iterator[None]:
    """Inside, Prefect talks to the configured server, or to a temporary one.

    Raises:
        AtelierError: the temporary server does not come up.
    """
    if PREFECT_API_URL.value():
        yield
        return
    port = _free_port()
    url = f"http://127.0.0.1:{port}/api"
    log = PREFECT_HOME.value() / "temporary-server.log"
    environment = {
        **os.environ,
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    }
    server = SupervisedProcess(_command(port), log, environment, repository_root())
    try:
        _wait_until_healthy(server, f"{url}/health", log)
        with temporary_settings(updates={PREFECT_API_URL: url}):
            try:
                yield
            finally:
                _drain()
    finally:
        server.stop(STOP_SECONDS)


def _command(port: int) -> list[str]:
    """The arguments Prefect starts its own temporary server with."""
    application = ["--app-dir", str(Path(prefect.__file__).parent.parent)]
    factory = ["--factory", "prefect.server.api.server:create_app"]
    address = ["--host", "127.0.0.1", "--port", str(port)]
    uvicorn = [sys.executable, "-m", "uvicorn"]
    return [*uvicorn, *application, *factory, *address, "--log-level", "error", "--lifespan", "on"]


def _wait_until_healthy(server: SupervisedProcess, url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AtelierError(f"the temporary Prefect server did not start; its output is in {log}")


def _drain() -> None:
    """Let the last logs and events arrive before the server goes."""
    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
