"""The reward services of a run, up before training and gone after it; and a shared one.

A reward with `placement: managed` gets `replicas` processes of `python -m atelier.rewards.service`
on free loopback ports, which ask for a random token that only this process and the trainer know.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atelier.config.paths import from_root, make_folder
from atelier.config.rewards import RewardsConfig
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError
from atelier.rewards.service.__main__ import require_token_beyond_loopback
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE, TOKEN_VARIABLE
from atelier.rewards.service.settings import ServiceSettings, write_settings
from atelier.rewards.service_file import write_services
from atelier.stages.managed_service import ManagedService, ServiceSpec
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

_POLL_SECONDS, _PROGRESS_SECONDS = 0.1, 5.0
# The trainer is the only client, and it sends its micro-batch whatever that is.
_OWN_CLIENT = {"body-mib": 1024, "items": 4096, "megapixels": 1000, "queue": 256}


class RewardServices:
    """A context in which the managed rewards of a run are served. Without one it does nothing.

    Entering waits until every service has scored its golden sample.

    Raises:
        ConfigError: on entering: a service cannot be what the configuration describes.
        Stopped: on entering and by `check`: every service of a reward has failed too often.
    """

    def __init__(self, run: RunDirectory, config: RunConfig) -> None:
        self._run = run
        self._token = secrets.token_urlsafe(32)
        self._writing = threading.Lock()
        self._services = {
            name: [self._service(config, name, index) for index in range(section.replicas)]
            for name, section in config.rewards.sections().items()
            if section.placement == "managed"
        }

    @property
    def urls(self) -> dict[str, list[str]]:
        """Reward name -> URLs of its services."""
        return {name: [one.url for one in found] for name, found in self._services.items()}

    @property
    def environment(self) -> dict[str, str]:
        """What the trainer's environment needs to be let in."""
        return {MANAGED_TOKEN_VARIABLE: self._token} if self._services else {}

    def check(self) -> None:
        """Raise Stopped once all services of a reward are given up: no score can come any more."""
        for found in self._services.values():
            problems = [one.problem for one in found if one.problem is not None]
            if len(problems) == len(found):
                raise problems[0]

    def __enter__(self) -> RewardServices:
        try:
            for service in self._all():
                service.start()
            _wait_until_ready(list(self._all()))
            self._write()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for service in self._all():
            service.begin_stop()
        for service in self._all():
            service.stop()

    def _all(self) -> Iterator[ManagedService]:
        for found in self._services.values():
            yield from found

    def _service(self, config: RunConfig, name: str, index: int) -> ManagedService:
        section = config.rewards.sections()[name]
        own = config.rewards.only(name)
        folder, label = self._run.train / "services", f"{name}-{index}"
        bounds = _OWN_CLIENT | {"seconds": section.timeout}
        spec = _spec(
            f"rewards.{label}",
            own,
            folder / label,
            self._run.processes / f"reward-{label}.json",
            section.startup,
            self._token,
            [part for key, value in bounds.items() for part in (f"--max-{key}", str(value))],
        )
        return ManagedService(spec, on_change=self._write_once_entered)

    def _write_once_entered(self) -> None:
        """A restart changes pids."""
        if all(service.is_ready or service.restarts for service in self._all()):
            self._write()

    def _write(self) -> None:
        if not self._services:
            return
        with self._writing:
            write_services(
                self._run.train,
                {
                    name: [self._described(name, one) for one in found]
                    for name, found in self._services.items()
                },
            )

    def _described(self, name: str, service: ManagedService) -> Mapping[str, Any]:
        return {
            "url": service.url,
            "pid": service.pid,
            "restarts": service.restarts,
            "log": service.spec.log.relative_to(self._run.root).as_posix(),
            **service.identities().get(name, {}),
        }


def serve(
    config: RunConfig,
    folder: Path,
    host: str,
    port: int,
    until: Callable[[], bool],
    ready: Callable[[str], None] = lambda url: logger.info("rewards: served at %s", url),
) -> None:
    """Serve all rewards of a configuration to whoever has `placement: remote`, and supervise it.

    Args:
        folder: for log, configuration and records; relative to the repository.
        host: address to bind; another than loopback needs ATELIER_REWARD_TOKEN in the environment.
        port: 0 takes a free one.
        until: asked several times a second; true ends the service.
        ready: called once, with the URL, when every golden sample is scored.

    Raises:
        ConfigError: no reward, no token, or a golden sample that can never be right.
        Stopped: the service failed too often.
    """
    token = os.environ.get(TOKEN_VARIABLE) or None
    require_token_beyond_loopback(host, token)
    sections = config.rewards.sections()
    if not sections:
        raise ConfigError("rewards: none is set, so there is nothing to serve")
    folder = from_root(folder)
    _require_place(folder, host, port)
    startup = max(section.startup for section in sections.values())
    record = folder / "processes" / "service.json"
    extra = ["--host", host]
    spec = _spec("rewards", config.rewards, folder / "service", record, startup, token, extra)
    service = ManagedService(replace(spec, host=host, port=port))
    service.start()
    try:
        _wait_until_ready([service], until)
        if service.is_ready:
            write_services(folder, {name: [{"url": service.url}] for name in sections})
            ready(service.url)
        while not until():
            if service.problem is not None:
                raise service.problem
            time.sleep(_POLL_SECONDS)
    finally:
        service.stop()


def _require_place(folder: Path, host: str, port: int) -> None:
    """Refuse what the service could not have, before anything starts.

    Raises:
        ConfigError: something listens on the port, or the folder cannot be one.
    """
    make_folder(folder, "--folder")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"--port {port} on {host} cannot be listened on ({error.strerror}); end what "
                "does, or choose another"
            ) from error


def _spec(
    label: str,
    rewards: RewardsConfig,
    base: Path,
    record: Path,
    startup: float,
    token: str | None,
    arguments: list[str],
) -> ServiceSpec:
    """How the rewards are served: `base` + .json, .log and .port are the service's files."""
    settings, port_file = base.with_suffix(".json"), base.with_suffix(".port")

    def command(port: int) -> list[str]:
        write_settings(settings, ServiceSettings(rewards=rewards))
        program = [sys.executable, "-m", "atelier.rewards.service", "--config", str(settings)]
        return [*program, "--port", str(port), "--port-file", str(port_file), *arguments]

    return ServiceSpec(
        label=label,
        command=command,
        log=base.with_suffix(".log"),
        record=record,
        port_file=port_file,
        environment=_environment(token),
        startup_seconds=startup,
        token=token,
    )


def _environment(token: str | None) -> dict[str, str]:
    """This process's, with the token of the service and no other."""
    tokens = (TOKEN_VARIABLE, MANAGED_TOKEN_VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in tokens}
    own = {TOKEN_VARIABLE: token} if token else {}
    return {**kept, **own, "PYTHONUNBUFFERED": "1"}


def _wait_until_ready(
    services: list[ManagedService], until: Callable[[], bool] = lambda: False
) -> None:
    """Raise the first problem; say what is waited for."""
    begun = said = time.monotonic()
    while waiting := [one for one in services if not one.is_ready]:
        for service in waiting:
            if service.problem is not None:
                raise service.problem
        if until():
            return
        if time.monotonic() - said > _PROGRESS_SECONDS:
            said = time.monotonic()
            text = "; ".join(f"{one.spec.label}: {one.says}" for one in waiting)
            logger.info("rewards: waiting for services (%.0f s): %s", said - begun, text)
        time.sleep(_POLL_SECONDS)
