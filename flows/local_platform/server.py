"""One way to start the Prefect server: by `atelier up`, or for the length of one command.

Prefect would start one for a command itself, but in our process group: Ctrl-C would end it before
the flow could report its end, and a killed flow would leave it behind. Ours has a session of its
own and dies with its owner (atelier.processes). Both keep their state in PREFECT_HOME, so a run of
a single command is seen later in the UI of `atelier up`.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from atelier.config.paths import repository_root
from atelier.errors import AtelierError, ConfigError
from atelier.processes.supervised import SupervisedProcess
from flows.local_platform.environment import (
    chosen_api_url,
    for_services,
    platform_api_url,
    without_password,
)
from flows.local_platform.loopback import HOST, answers, free_port
from flows.local_platform.state import health_url, logs, running_platform

logger = logging.getLogger("atelier")

START_SECONDS = 120.0
STOP_SECONDS = 5.0
LEASES_ON_DISK = "prefect.server.concurrency.lease_storage.filesystem"


def server_command(api_url: str) -> list[str]:
    """The program that serves the API, and the UI where it is enabled, on loopback."""
    packages = importlib.util.find_spec("prefect")
    assert packages is not None
    assert packages.origin is not None
    application = ["--app-dir", str(Path(packages.origin).parents[1])]
    factory = ["--factory", "prefect.server.api.server:create_app", "--lifespan", "on"]
    address = ["--host", HOST, "--port", str(urlsplit(api_url).port)]
    uvicorn = [sys.executable, "-m", "uvicorn", *application, *factory]
    return [*uvicorn, *address, "--log-level", "error", "--no-access-log"]


def server_environment(api_url: str, ui: bool) -> dict[str, str]:
    """Its settings. Without the UI it is what Prefect calls ephemeral: fewer services inside."""
    own = {} if ui else {"PREFECT__SERVER_EPHEMERAL": "1"}
    address = urlsplit(api_url)
    return {
        **for_services(api_url),
        **own,
        "PREFECT_SERVER_UI_ENABLED": str(ui),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(address.port),
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        # In memory, a restarted server would forget who holds a slot, but not that it is taken.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES_ON_DISK,
    }


@contextmanager
def prefect_server(before: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Inside, Prefect talks to the server the user chose, else to the platform's, else to one that
    lives as long as the block.

    Args:
        before: what is done before the block, while a server starts if one has to.

    Raises:
        AtelierError: the temporary server does not come up.
    """
    platform = running_platform()
    if chosen_api_url() is not None:
        before()
        yield
    elif platform is not None and answers(platform.health_url):
        before()
        with talking_to(platform.api_url):
            yield
    else:
        with _temporary_server(before) as api_url, talking_to(api_url):
            yield


def require_chosen_server() -> None:
    """Refuse a PREFECT_API_URL that leads nowhere, before anything starts.

    Raises:
        ConfigError: no server answers there.
    """
    chosen = chosen_api_url()
    if chosen is not None:
        platform_api_url()  # is it an address at all?
    if chosen is not None and not answers(health_url(chosen.rstrip("/")), 5.0):
        raise ConfigError(
            f"PREFECT_API_URL is {without_password(chosen)}, and no Prefect server answers there; "
            "start it, or unset the variable to use the platform's (`make up`) or a temporary one"
        )


@contextmanager
def _temporary_server(meanwhile: Callable[[], object]) -> Iterator[str]:
    logger.info("starting a Prefect server for this run (`make up` keeps one running)")
    api_url = f"http://{HOST}:{free_port()}/api"
    log = logs() / "temporary-server.log"
    environment = server_environment(api_url, ui=False)
    server = SupervisedProcess(server_command(api_url), log, environment, repository_root())
    try:
        meanwhile()
        _wait_until_healthy(server, api_url, log)
        yield api_url
    finally:
        server.stop(STOP_SECONDS)


def _wait_until_healthy(server: SupervisedProcess, api_url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        if answers(health_url(api_url)):
            return
        time.sleep(0.1)
    raise AtelierError(f"the temporary Prefect server did not start; its output is in {log}")


@contextmanager
def talking_to(api_url: str) -> Iterator[None]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings(updates={PREFECT_API_URL: api_url}):
        try:
            yield
        finally:
            _drain()


def _drain() -> None:
    """Let the last logs and events arrive before the server goes."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=5)
