"""`atelier up`: the platform started in the background, healthy, and ready for flow runs."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from atelier.background import meanwhile
from atelier.config.paths import repository_root
from atelier.errors import AtelierError, ConfigError
from atelier.processes.leftovers import clean_up
from atelier.processes.records import TOKEN
from atelier.tracking.mlflow_store import project_uri, sqlite_path
from flows.local_platform.environment import chosen_api_url, platform_api_url, without_password
from flows.local_platform.loopback import HOST, answers, free_port, is_free, is_loopback
from flows.local_platform.server import require_chosen_server, talking_to
from flows.local_platform.services import WORK_POOL, WORKER
from flows.local_platform.state import (
    Platform,
    health_url,
    logs,
    require_none_elsewhere,
    running_platform,
    worker_permit,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

START_SECONDS = 180.0
MOST_RESTARTS = 3
MLFLOW_PORT = 5000

Say = Callable[[str], None]


def up(gpu_slots: int | None, say: Say) -> None:
    """Start what does not run yet, and bring deployments, limits and records up to date.

    Args:
        gpu_slots: how many jobs may want a GPU at once; None keeps what was set before.
        say: prints a line.

    Raises:
        ConfigError: a port is taken, or a server named in PREFECT_API_URL does not answer.
        AtelierError: a service does not come up.
    """
    # Importing Prefect takes as long as starting its server: both at once, and not a third time
    # in this thread meanwhile, because Prefect's modules import each other in circles.
    with meanwhile("imports", _import_prefect):
        platform = _running_or_started(say)
        _wait(platform, "server", lambda: answers(platform.health_url))
    slots = _prepare(platform, gpu_slots, say)
    _wait(platform, "mlflow", lambda: _mlflow_answers(platform))
    _say_where(platform, slots, say)


def _running_or_started(say: Say) -> Platform:
    platform = running_platform()
    if platform is None:
        require_none_elsewhere()
        say("Starting the Prefect server, a worker and the MLflow UI (the first time a minute).")
        return _start(say)
    if platform.api_url != platform_api_url():
        raise ConfigError(
            f"the platform is up with the server {without_password(platform.api_url)}, and "
            f"{without_password(platform_api_url())} is "
            "configured now (PREFECT_API_URL, or api.url in prefect.toml); `make down` first"
        )
    say("The platform is up already.")
    return platform


def _import_prefect() -> None:
    for name in ("automations", "reconcile", "registration"):
        importlib.import_module(f"flows.local_platform.{name}")


# Starting --------------------------------------------------------------------------------------


def _start(say: Say) -> Platform:
    """The supervisor, in a session of its own and with nothing of ours but the environment."""
    api_url, uri = platform_api_url(), project_uri()
    arguments = ["--api-url", api_url]
    if _own_server(api_url, say):
        arguments.append("--server")
    if sqlite_path(uri) is None:
        arguments += ["--mlflow-url", uri]
    else:
        port = _mlflow_port(urlsplit(api_url).port, say)
        arguments += ["--mlflow-url", f"http://{HOST}:{port}", "--mlflow-port", str(port)]
    for line in clean_up(logs()):
        say(line)
    logs().mkdir(parents=True, exist_ok=True)
    with _supervisor_log().open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.local_platform.supervisor", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=repository_root(),
            env={name: value for name, value in os.environ.items() if name != TOKEN},
        )
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if (platform := running_platform()) is not None:
            return platform
        time.sleep(0.05)
    # Another `up` may have been faster by a moment.
    if (platform := running_platform()) is not None:
        return platform
    raise AtelierError(f"the supervisor did not start:\n{_end_of(_supervisor_log())}")


def _own_server(api_url: str, say: Say) -> bool:
    """Whether the Prefect server is ours to run, or somebody's that runs already.

    Raises:
        ConfigError: neither is possible.
    """
    chosen = chosen_api_url()
    if chosen is not None and (not is_loopback(api_url) or answers(health_url(api_url))):
        require_chosen_server()
        say(f"Using the Prefect server at {without_password(api_url)} (PREFECT_API_URL).")
        return False
    port = urlsplit(api_url).port
    if not is_loopback(api_url) or port is None or not api_url.endswith("/api"):
        raise ConfigError(
            f"prefect.toml: api.url is {api_url}: the platform's own server is at "
            f"http://{HOST}:<port>/api; another machine's is named in PREFECT_API_URL"
        )
    if not is_free(port):
        raise ConfigError(
            f"port {port}, wanted by the Prefect server, is in use; end what listens there, or "
            "change api.url in prefect.toml (or set PREFECT_API_URL) to another port"
        )
    return True


def _mlflow_port(taken: int | None, say: Say) -> int:
    """ATELIER_MLFLOW_PORT, or 5000, or a free one: nothing but a browser needs to know it.

    Args:
        taken: the Prefect server's.
    """
    chosen = os.environ.get("ATELIER_MLFLOW_PORT")
    if chosen and not (re.fullmatch("[0-9]{1,5}", chosen) and 0 < int(chosen) < 65536):
        raise ConfigError(f"ATELIER_MLFLOW_PORT is {chosen!r}: a port expected, 1 to 65535")
    port = int(chosen or MLFLOW_PORT)
    if chosen and port == taken:
        raise ConfigError(f"ATELIER_MLFLOW_PORT is {port}, the Prefect server's; set another")
    if port != taken and is_free(port):
        return port
    if chosen:
        raise ConfigError(
            f"port {port}, wanted by the MLflow UI, is in use; set ATELIER_MLFLOW_PORT to another"
        )
    other = free_port()
    say(f"Port {port} is in use; the MLflow UI takes {other} (ATELIER_MLFLOW_PORT chooses one).")
    return other


# Preparing -------------------------------------------------------------------------------------


def _prepare(platform: Platform, gpu_slots: int | None, say: Say) -> int:
    """All that runs rely on; the worker starts once nothing it could disturb is left to do.

    Returns:
        The slots of the limit `gpu`.
    """
    with talking_to(platform.api_url):
        from tasks.server import UNANSWERED, ask_server

        try:
            with ask_server() as client:
                return _register(client, platform, gpu_slots, say)
        except UNANSWERED as error:
            raise AtelierError(
                f"the Prefect server does not answer as it should ({error or type(error).__name__})"
                "; `make up` again goes on from here"
            ) from error


def _register(
    client: SyncPrefectClient, platform: Platform, gpu_slots: int | None, say: Say
) -> int:
    from flows.local_platform.automations import register_automations
    from flows.local_platform.reconcile import reconcile
    from flows.local_platform.registration import create_limits, create_work_pools, deploy

    create_work_pools(client)
    slots = create_limits(client, gpu_slots)
    for line in reconcile():
        say(line)
    if not worker_permit().exists():
        worker_permit().touch()
    register_automations(client)
    deploy(client, platform.api_url)
    _wait(platform, "worker", lambda: _worker_polls(client))
    return slots


def _worker_polls(client: SyncPrefectClient) -> bool:
    """Whether the worker has said so since it was permitted to start, and not too long ago."""
    permitted = datetime.fromtimestamp(worker_permit().stat().st_mtime, UTC)
    return any(
        worker.name == WORKER
        and worker.status == "ONLINE"
        and worker.last_heartbeat_time is not None
        and worker.last_heartbeat_time >= permitted
        for worker in client.read_workers_for_work_pool(WORK_POOL)
    )


def _mlflow_answers(platform: Platform) -> bool:
    """Also where it is somebody else's, which is theirs to mend: a run waits for no MLflow."""
    ours = "mlflow" in (running_platform() or platform).services
    return answers(f"{platform.mlflow_url}/health") or not ours


def _wait(platform: Platform, service: str, is_there: Callable[[], bool]) -> None:
    """Until a service is there, unless it keeps ending."""
    deadline, before = time.monotonic() + START_SECONDS, _restarts(service)
    while not is_there():
        if not platform.lives:
            raise AtelierError(f"the platform was stopped while it started; {logs()} has its logs")
        if time.monotonic() > deadline or _restarts(service) - before >= MOST_RESTARTS:
            log = logs() / f"{service}.log"
            raise AtelierError(
                f"the {service} does not come up; {log} ends with\n{_end_of(log)}\n"
                "`make down` stops what did"
            )
        time.sleep(0.1)


def _restarts(service: str) -> int:
    platform = running_platform()
    return platform.services.get(service, {}).get("restarts", 0) if platform else 0


# Words -----------------------------------------------------------------------------------------


def _say_where(platform: Platform, slots: int, say: Say) -> None:
    prefect = _short(Path(sys.executable).with_name("prefect"))
    say(f"Prefect  {platform.ui_url}  (flow runs queue for {slots} GPU slot{'s'[: slots != 1]})")
    say(f"MLflow   {platform.mlflow_page}")
    say(f"Logs     {_short(logs())}")
    say(f"Next     {prefect} deployment run grpo/full --watch")
    say("         make down")


def _short(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _supervisor_log() -> Path:
    return logs() / "supervisor.log"


def _end_of(log: Path, lines: int = 12) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:]) or "(nothing)"
