"""What is known of a platform that runs: PREFECT_HOME/platform.json, written by its supervisor."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atelier.errors import ConfigError, DataError
from atelier.processes.records import identity, is_alive, is_elsewhere
from atelier.tracking.run_directory import read_json_object, write_json
from flows.local_platform.environment import prefect_home


@dataclass
class Platform:
    """A supervisor (pid and start time, because pids come again) and where its services are.

    Attributes:
        host: machine of the supervisor (processes/host.py): a checkout may be shared.
        mlflow_url: the MLflow UI's address, also where it is somebody else's.
        services: pid of each service's guard, and how often the service was started again.
    """

    host: str
    pid: int
    started: float
    api_url: str
    mlflow_url: str
    services: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of_this_process(cls, api_url: str, mlflow_url: str) -> Platform:
        return cls(**identity(os.getpid()), api_url=api_url, mlflow_url=mlflow_url)

    @property
    def lives(self) -> bool:
        """Whether the supervisor does; its services may still be starting."""
        return is_alive(self._process)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is another machine's, where alone it can be said whether it lives."""
        return is_elsewhere(self._process)

    @property
    def _process(self) -> dict[str, Any]:
        return {"host": self.host, "pid": self.pid, "started": self.started}

    @property
    def ui_url(self) -> str:
        return self.api_url.removesuffix("/api")

    @property
    def mlflow_page(self) -> str:
        """The experiments, in the mode that shows training runs: MLflow opens in its other one."""
        return f"{self.mlflow_url}/#/experiments?workflowType=machine_learning"

    @property
    def health_url(self) -> str:
        return health_url(self.api_url)

    def save(self) -> None:
        write_json(_file(), asdict(self))


def running_platform() -> Platform | None:
    """The platform of this PREFECT_HOME, if its supervisor lives on this machine."""
    platform = _written()
    return platform if platform is not None and platform.lives else None


def require_none_elsewhere() -> None:
    """Refuse to start a second platform on one PREFECT_HOME.

    Raises:
        ConfigError: another machine has one there, or had one that did not end well.
    """
    platform = _written()
    if platform is not None and platform.is_elsewhere:
        raise ConfigError(
            f"machine {platform.host} has a platform in {prefect_home()}: `make down` there; where "
            f"that machine is gone, remove {_file()}; or let PREFECT_HOME name another folder here"
        )


def _written() -> Platform | None:
    try:
        return Platform(**read_json_object(_file()))
    except (DataError, TypeError):  # none, or what another version wrote
        return None


def forget() -> None:
    _file().unlink(missing_ok=True)


def health_url(api_url: str) -> str:
    return f"{api_url}/health"


def logs() -> Path:
    """The folder of the services' output."""
    return prefect_home() / "logs"


def lock_file() -> Path:
    """Held by the one supervisor of this PREFECT_HOME for as long as it lives."""
    return prefect_home() / "platform.lock"


def worker_permit() -> Path:
    """The worker starts when this file is there: `up` writes it when all is prepared."""
    return prefect_home() / "platform.prepared"


def _file() -> Path:
    return prefect_home() / "platform.json"
