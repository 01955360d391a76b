"""Prefect's process worker, which says only once that a flow run crashed.

    python -m flows.local_platform.worker start --pool POOL ...

The arguments are those of `prefect worker`. Prefect's own reports a killed flow twice, some seconds
apart (between them it imports the flow to look for hooks), and the second report overwrites a
retry that came in between: the new attempt is Crashed before it begins.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from prefect.cli import app
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

if TYPE_CHECKING:
    from uuid import UUID

    from anyio.abc import TaskStatus
    from prefect.client.schemas.objects import FlowRun

with warnings.catch_warnings():
    # Taking the place of the worker of the same type is what this class is for.
    warnings.filterwarnings("ignore", message="Type 'CrashReportedOnce'")

    class CrashReportedOnce(ProcessWorker):
        """Starts flow runs as processes."""

        async def run(
            self,
            flow_run: FlowRun,
            configuration: ProcessJobConfiguration,
            task_status: TaskStatus[int] | None = None,
        ) -> ProcessWorkerResult:
            """Run a flow run's process to its end.

            Returns:
                Status code 0 where Prefect has the crash already, so that none is reported again;
                the process's own where the first report did not arrive.
            """
            before = await self._ends_of(flow_run)
            result = await super().run(flow_run, configuration, task_status)
            if result.status_code and await self._ends_of(flow_run) - before:
                return ProcessWorkerResult(status_code=0, identifier=result.identifier)
            return result

        async def _ends_of(self, flow_run: FlowRun) -> set[UUID]:
            """The final states of all its attempts so far, whatever came after them."""
            states = await self.client.read_flow_run_states(flow_run.id)
            return {state.id for state in states if state.is_final()}


if __name__ == "__main__":
    sys.argv.insert(1, "worker")
    app()
