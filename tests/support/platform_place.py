"""A platform of a test's own: free ports, a temporary PREFECT_HOME, and the commands of a user."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass(frozen=True)
class PlatformPlace:
    """Everything that is started for it has `root` in its environment, so leftovers are found."""

    root: Path
    port: int
    mlflow_port: int

    @classmethod
    def at(cls, root: Path) -> PlatformPlace:
        return cls(root, *free_ports(2))

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def mlflow_url(self) -> str:
        return f"http://127.0.0.1:{self.mlflow_port}"

    @property
    def mlflow_uri(self) -> str:
        return f"sqlite:///{self.root / 'mlflow' / 'mlflow.db'}"

    @property
    def home(self) -> Path:
        return self.root / "prefect"

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_URL": self.api_url,
            "ATELIER_MLFLOW_PORT": str(self.mlflow_port),
            "ATELIER_RUNS": str(self.root / "runs"),
            "MLFLOW_TRACKING_URI": self.mlflow_uri,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "COLUMNS": "200",
        }
        return {**os.environ, **own}

    def run(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """`python -m ...` from the repository root, as users are told to."""
        return self._python("-m", *arguments, **extra)

    def script(self, text: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return self._python("-c", text, **extra)

    def _python(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env={**self.environment, **extra},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def up(self, *options: str) -> str:
        done = self.run("atelier", "up", *options)
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout

    def down(self, *options: str) -> str:
        done = self.run("atelier", "down", *options)
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout

    def state(self) -> dict[str, Any]:
        """platform.json; empty where no platform is up."""
        file = self.home / "platform.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def service(self, name: str) -> psutil.Process:
        """The program itself, below its guard."""
        (program,) = psutil.Process(self.state()["services"][name]["guard"]).children()
        return program

    def restarts(self) -> Mapping[str, int]:
        return {name: one["restarts"] for name, one in self.state()["services"].items()}

    def logs(self) -> str:
        files = sorted((self.home / "logs").glob("*.log"))
        return "".join(f"\n--- {file.name}\n{file.read_text()[-2000:]}" for file in files)

    def wait(self, condition: Callable[[], Any], seconds: float = 120.0) -> Any:
        """The condition's first true value."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)
        return value

    @property
    def client(self) -> Any:
        from prefect.client.orchestration import SyncPrefectClient

        return SyncPrefectClient(self.api_url)
