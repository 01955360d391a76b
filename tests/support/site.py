"""A Prefect server and a worker of a test's own, and trainers that nothing but SIGKILL ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

from atelier.processes.supervised import SupervisedProcess

POOL = "local"
FLOWS = {"grpo": "full", "train": "run"}

# Runs in every Python process that finds it on its path. A rank of the trainer says who it is and
# hangs, silent and deaf to SIGTERM, as long as the file `hang` is there; then it trains, or, with
# a file `pretend`, writes the metrics of one step and is done.
SITECUSTOMIZE = """
import os, pathlib, signal, sys, time
arguments, folder = sys.orig_argv, pathlib.Path(os.environ.get("TEST_STUBBORN", "/nowhere"))
if "atelier.training" in arguments and ("RANK" in os.environ or "1" in arguments):
    if (folder / "hang").exists():
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / f"rank-{os.getpid()}").touch()
        while (folder / "hang").exists():
            time.sleep(0.2)
        signal.signal(signal.SIGTERM, before)
    if (folder / "pretend").exists():
        metrics = pathlib.Path(arguments[-1]) / "train" / "metrics.jsonl"
        metrics.write_text('{"step": 4, "reward/mean": 0.5}\\n')
        os._exit(0)
"""


@dataclass
class Site:
    """Where a server listens, with a worker that may be killed and started again."""

    root: Path
    environment: Mapping[str, str]
    url: str
    server: SupervisedProcess | None = None
    worker: subprocess.Popen[bytes] | None = None
    deployments: dict[str, UUID] = field(default_factory=dict)

    @property
    def client(self) -> Any:
        from prefect.client.orchestration import SyncPrefectClient

        return SyncPrefectClient(self.url)

    def start_server(self) -> None:
        from flows.local_platform.loopback import answers
        from flows.local_platform.server import server_command

        log = self.root / "server.log"
        command = server_command(self.url)
        self.server = SupervisedProcess(command, log, self.environment, self.root)
        self.wait(lambda: answers(f"{self.url}/health", 2.0))

    def kill_server(self) -> None:
        assert self.server is not None
        for child in psutil.Process(self.server.pid).children():
            child.kill()
        self.server.stop()

    def start_worker(self) -> None:
        command = [sys.executable, "-m", "flows.local_platform.worker", "start", "--pool", POOL]
        with (self.root / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [*command, "--type", "process", "--name", "test"],
                env=self.environment,
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_worker(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait()

    def submit(self, flow: str, stubborn: Path | None = None, **parameters: Any) -> UUID:
        """A flow run of a deployment, its ranks as SITECUSTOMIZE says of the folder `stubborn`."""
        variables = None
        if stubborn is not None:
            (stubborn / "sitecustomize.py").write_text(SITECUSTOMIZE)
            path = os.pathsep.join([str(stubborn), self.environment["PYTHONPATH"]])
            variables = {"env": {"PYTHONPATH": path, "TEST_STUBBORN": str(stubborn)}}
        with self.client as client:
            run = client.create_flow_run_from_deployment(
                self.deployments[flow], parameters=parameters, job_variables=variables
            )
        return UUID(str(run.id))

    def cancel(self, run: UUID) -> None:
        """What `prefect flow-run cancel` does."""
        from prefect.states import Cancelling

        with self.client as client:
            client.set_flow_run_state(run, Cancelling())

    def retry(self, run: UUID) -> None:
        """What `prefect flow-run retry` does, without the seconds its start takes."""
        from prefect.states import Scheduled

        with self.client as client:
            client.set_flow_run_state(run, Scheduled(), force=True)

    def read(self, run: UUID) -> Any:
        with self.client as client:
            return client.read_flow_run(run)

    def log(self, run: UUID) -> str:
        """The run's log, as its page shows it."""
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

        with self.client as client:
            lines = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run])))
        return "\n".join(line.message for line in lines)

    def task_states(self, run: UUID) -> list[tuple[str, str]]:
        """(task, state) of every attempt."""
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

        condition = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
        with self.client as client:
            tasks = client.read_task_runs(flow_run_filter=condition)
        return sorted((task.name, task.state_name) for task in tasks)

    def state(self, run: UUID) -> str:
        return str(self.read(run).state.name)

    def wait(self, condition: Callable[[], Any], seconds: float = 120.0) -> Any:
        """The condition's first true value."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, (self.root / "worker.log").read_text()[-3000:]
            time.sleep(0.2)
        return value

    def pid(self, run: UUID) -> int:
        """Of the flow's process, as the run itself says."""
        return int(self.read(run).labels["atelier.pid"])


def processes_of_run(run: UUID) -> list[psutil.Process]:
    """Every living process that was started for a flow run: its environment says so."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(run) == process.environ().get(
                "PREFECT__FLOW_RUN_ID"
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def guards_of_run(run: UUID) -> list[psutil.Process]:
    return [one for one in processes_of_run(run) if "atelier.processes.guard" in one.cmdline()]


@contextmanager
def prefect_site(root: Path, environment: Mapping[str, str], gpu_slots: int) -> Iterator[Site]:
    """A server with the deployments, one worker, and a limit `gpu`."""
    from flows.local_platform.environment import for_services
    from flows.local_platform.loopback import free_port
    from flows.local_platform.server import server_environment

    url = f"http://127.0.0.1:{free_port()}/api"
    own = {**for_services(url, environment), "PREFECT_WORKER_QUERY_SECONDS": "1"}
    site = Site(root, {**server_environment(url, ui=False), **own}, url)
    try:
        site.start_server()
        _deploy(site, gpu_slots)
        site.start_worker()
        yield site
    finally:
        if site.worker is not None:
            site.kill_worker()
        if site.server is not None:
            site.server.stop()


def _deploy(site: Site, gpu_slots: int) -> None:
    import importlib

    from prefect.client.schemas.actions import WorkPoolCreate

    with site.client as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        client.upsert_global_concurrency_limit_by_name("gpu", gpu_slots)
        for name, deployment in FLOWS.items():
            flow = getattr(importlib.import_module(f"flows.{name}"), name)
            site.deployments[name] = client.create_deployment(
                flow_id=client.create_flow(flow),
                name=deployment,
                entrypoint=f"flows.{name}.{name}",
                work_pool_name=POOL,
                parameter_openapi_schema=flow.parameters.model_dump(exclude_unset=True),
            )
