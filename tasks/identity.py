"""Which process a flow run is, written on the run itself: whoever finds it Running later can tell
whether anybody still works on it (flows/local_platform/reconcile.py).

Labels on the server and not a file: they are where the run is, also for another checkout, and a
retry writes over them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from atelier.processes.host import this_host
from atelier.processes.records import identity, is_alive

HOST, PID, STARTED, ATTEMPT = "atelier.host", "atelier.pid", "atelier.started", "atelier.attempt"
LEASE = "atelier.lease."  # + a concurrency limit's name: the lease the run holds, or empty


@dataclass(frozen=True)
class ProcessIdentity:
    """A process of some machine. `started` is in seconds since the epoch: pids come again."""

    host: str
    pid: int
    started: float

    @property
    def is_here(self) -> bool:
        return self.host == this_host()

    @property
    def is_gone(self) -> bool:
        """Whether it is known to be dead: of another machine's process, nothing is known."""
        return self.is_here and not self.lives()

    def lives(self) -> bool:
        """Whether it still runs; to be asked on its own machine."""
        return is_alive({"host": self.host, "pid": self.pid, "started": self.started})


def announce(client: SyncPrefectClient, run: FlowRun) -> None:
    """Write this process on its flow run."""
    own = identity(os.getpid())
    labels = {
        HOST: own["host"],
        PID: own["pid"],
        STARTED: own["started"],
        ATTEMPT: run.run_count,
    }
    client.update_flow_run_labels(run.id, labels)


def process_of(run: FlowRun) -> ProcessIdentity | None:
    """The process of the run's present attempt, if it has said so already; None too where the
    labels are not what `announce` writes, for anybody may write labels."""
    host, pid, started = (run.labels.get(name) for name in (HOST, PID, STARTED))
    if run.labels.get(ATTEMPT) != run.run_count or not isinstance(host, str):
        return None
    if not isinstance(pid, int) or not isinstance(started, int | float):
        return None
    return ProcessIdentity(host, pid, float(started))
