"""Keeps the platform's services alive, in a session of its own; started by `atelier up`.

    python -m flows.local_platform.supervisor --api-url URL --mlflow-url URL [--server] ...

A service that ends is started again, after a pause that grows while it keeps ending. SIGTERM ends
all of them. However this process ends, they end with it: each has a guard (atelier.processes).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from atelier.processes.locks import hold
from atelier.processes.supervised import SupervisedProcess
from atelier.tracking.mlflow_store import project_uri
from flows.local_platform.catching_up import CatchingUp, StoreCreation
from flows.local_platform.services import Service, mlflow_ui, prefect_server, prefect_worker
from flows.local_platform.state import Platform, forget, lock_file, worker_permit

POLL_SECONDS = 0.2
# After a service ended: the first pause, the longest, and what counts as having run well.
FIRST_PAUSE, LONGEST_PAUSE, RAN_WELL_SECONDS = 0.5, 30.0, 60.0

logger = logging.getLogger("atelier.platform")


class Keeper:
    """One service, started again whenever it ends."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.restarts = 0
        self._pause = FIRST_PAUSE
        self._due = 0.0
        self._started = 0.0
        self._process: SupervisedProcess | None = None

    @property
    def guard(self) -> int:
        """Pid of its guard; 0 while it pauses."""
        return self._process.pid if self._process else 0

    def tend(self) -> bool:
        """Start it if it is time to. Returns whether anything changed."""
        now = time.monotonic()
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return False
            self._process.stop()
            self._process = None
            self._pause = FIRST_PAUSE if now - self._started > RAN_WELL_SECONDS else self._pause
            logger.warning("%s ended (%d); again in %.1f s", self.service.name, code, self._pause)
            self._due, self._pause = now + self._pause, min(2 * self._pause, LONGEST_PAUSE)
            self.restarts += 1
        elif now >= self._due:
            self._process, self._started = self.service.start(), now
        else:
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


class Supervisor:
    """All services of one platform, from start to stop."""

    def __init__(self, platform: Platform, keepers: Sequence[Keeper], worker: Keeper) -> None:
        self._platform = platform
        self._keepers = [*keepers]
        self._worker = worker
        self._stopping = threading.Event()

    def run(self, creation: StoreCreation, catching_up: CatchingUp) -> None:
        """Until SIGTERM."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: self._stopping.set())
        try:
            with creation, catching_up:
                while not self._stopping.wait(POLL_SECONDS):
                    if self._worker not in self._keepers and worker_permit().exists():
                        self._keepers.append(self._worker)
                    # Every one of them, and not only until the first that changed.
                    if any([keeper.tend() for keeper in self._keepers]):
                        self._save()
                    if self._worker in self._keepers and creation.tend():
                        catching_up.tend()
        finally:
            self._stop()

    def _save(self) -> None:
        self._platform.services = {
            keeper.service.name: {"guard": keeper.guard, "restarts": keeper.restarts}
            for keeper in self._keepers
        }
        self._platform.save()

    def _stop(self) -> None:
        """The worker first: its runs still have something to say to the server."""
        self._worker.stop()
        others = [threading.Thread(target=one.stop) for one in self._keepers]
        for thread in others:
            thread.start()
        for thread in others:
            thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.local_platform.supervisor")
    parser.add_argument("--api-url", required=True)
    parser.add_argument("--mlflow-url", required=True)
    parser.add_argument("--server", action="store_true", help="run the Prefect server")
    parser.add_argument("--mlflow-port", type=int, help="run the MLflow UI on this port")
    own = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with hold(lock_file()) as other:
        if other is not None:
            logger.info("process %s is the supervisor already", other)
            return 0
        _supervise(own)
    return 0


def _supervise(own: argparse.Namespace) -> None:
    uri = project_uri()
    services = [prefect_server(own.api_url)] if own.server else []
    if own.mlflow_port:
        services.append(mlflow_ui(uri, own.mlflow_port))
    worker_permit().unlink(missing_ok=True)
    platform = Platform.of_this_process(own.api_url, own.mlflow_url)
    platform.save()
    logger.info("up as process %d", os.getpid())
    worker = Keeper(prefect_worker(own.api_url))
    try:
        supervisor = Supervisor(platform, [Keeper(one) for one in services], worker)
        supervisor.run(StoreCreation(uri, own.mlflow_url), CatchingUp())
    finally:
        worker_permit().unlink(missing_ok=True)
        forget()
        logger.info("down")


if __name__ == "__main__":
    sys.exit(main())
