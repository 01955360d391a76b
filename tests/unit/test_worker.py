"""The worker says nothing of a crash that Prefect knows: it would overwrite a retry."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import anyio
import pytest
from prefect.states import Crashed, Running, Scheduled
from prefect.workers.process import ProcessWorker, ProcessWorkerResult

from flows.local_platform.worker import Worker


@pytest.mark.parametrize(
    ("after", "code"),
    [([Running(), Crashed(), Scheduled()], 0), ([Running()], -9)],
    ids=["reported and retried", "not reported"],
)
def test_a_crash_is_reported_once(monkeypatch: pytest.MonkeyPatch, after: list, code: int):
    answers = [[], after]

    class Client:
        async def read_flow_run_states(self, _):
            return answers.pop(0)

        async def read_flow_run(self, _):
            return SimpleNamespace(state=after[-1])

    async def killed(*_):
        return ProcessWorkerResult(status_code=-9, identifier="1")

    monkeypatch.setattr(ProcessWorker, "run", killed)
    monkeypatch.setattr(Worker, "client", Client())
    worker = Worker(work_pool_name="any")
    result = anyio.run(worker.run, SimpleNamespace(id=uuid4()), None)
    assert result.status_code == code
