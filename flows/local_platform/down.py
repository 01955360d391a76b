"""`atelier down`: the platform's end, in seconds, and nothing of it left."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from atelier.errors import AtelierError
from atelier.processes.leftovers import clean_up
from flows.local_platform.loopback import answers
from flows.local_platform.server import talking_to
from flows.local_platform.state import Platform, forget, logs, running_platform

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# A flow run ends within 25 s of SIGTERM: its guards give what they guard 15.
RUN_SECONDS = 28.0
SUPERVISOR_SECONDS = 20.0
GO_ON = "`prefect flow-run retry ID`, or `atelier run --resume ID` for one of `atelier run`"


@dataclass(frozen=True)
class LiveRun:
    """A flow run that somebody works on at this moment, here or elsewhere."""

    name: str
    id: str
    process: psutil.Process | None

    def describe(self) -> str:
        where = f"process {self.process.pid}" if self.process else "not a process of this machine"
        return f"  {self.name} ({self.id}), {where}"


def down(force: bool, say: Callable[[str], None]) -> None:
    """Stop every service of this PREFECT_HOME's platform.

    Args:
        force: stop its flow runs first; they are resumable. Without it they keep it up.

    Raises:
        AtelierError: flow runs are running and `force` is not set.
    """
    platform = running_platform()
    if platform is None:
        forget()  # where a killed supervisor left it
        lines = clean_up(logs())
        say("\n".join(lines) if lines else "The platform is not up.")
        return
    if runs := _live_runs(platform, force):
        _end_runs(runs, force, say)
    _end_supervisor(platform)
    for line in clean_up(logs()):
        say(line)
    say("The platform is down.")


def _live_runs(platform: Platform, force: bool) -> list[LiveRun]:
    """Those that somebody works on. Where the server is gone there is none it is kept up for.

    Raises:
        AtelierError: the server is there but does not say, and `force` is not set.
    """
    if not answers(platform.health_url):
        return []
    with talking_to(platform.api_url):
        from flows.local_platform.reconcile import is_abandoned, unfinished
        from tasks.server import UNANSWERED, ask_server

        try:
            with ask_server() as client:
                return [_live(run) for run in unfinished(client) if not is_abandoned(run)]
        except UNANSWERED as error:
            if force:
                return []
            raise AtelierError(
                f"the Prefect server does not say which flow runs are running ({error}); try "
                "again, or stop the platform whatever runs: `atelier down --force`"
            ) from error


def _live(run: FlowRun) -> LiveRun:
    from tasks.identity import process_of

    announced = process_of(run)
    process = None
    if announced is not None and announced.is_here:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(announced.pid)
    return LiveRun(run.name, str(run.id), process)


def _end_runs(runs: list[LiveRun], force: bool, say: Callable[[str], None]) -> None:
    listed = "\n".join(run.describe() for run in runs)
    if not force:
        raise AtelierError(
            f"{len(runs)} flow run(s) need the platform:\n{listed}\n"
            "Wait for them, cancel them (prefect flow-run cancel ID), or stop them now with "
            f"`atelier down --force`. Later, from their last checkpoint: {GO_ON}"
        )
    say(f"Stopping {len(runs)} flow run(s); later: {GO_ON}\n{listed}")
    processes = [run.process for run in runs if run.process is not None]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    psutil.wait_procs(processes, timeout=RUN_SECONDS)


def _end_supervisor(platform: Platform) -> None:
    """SIGTERM; if it does not end, SIGKILL: the guards of its services see to the rest."""
    supervisor = psutil.Process(platform.pid)
    deadline = time.monotonic() + SUPERVISOR_SECONDS
    supervisor.terminate()
    while platform.lives and time.monotonic() < deadline:
        time.sleep(0.05)
    if platform.lives:
        supervisor.kill()
        time.sleep(1.0)
        forget()
