"""Prefect's process worker, which leaves every flow run in the state that it came to.

    python -m flows.local_platform.worker start --pool POOL ...

The arguments are those of `prefect worker`. Prefect's own
- reports a killed flow twice, some seconds apart (between them it imports the flow to look for
  hooks), and the second report overwrites a retry that came in between: the new attempt is Crashed
  before it begins;
- leaves a run Cancelling for ever whose process ended before its flow began;
- knows nothing of flow runs that another worker started: where that one was killed and then their
  process, they are Running for ever.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import httpx
from prefect.cli import app
from prefect.states import Cancelled
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

if TYPE_CHECKING:
    from uuid import UUID

    from anyio.abc import TaskStatus
    from prefect.client.schemas.objects import FlowRun

from flows.local_platform.reconcile import reconcile
from tasks.server import ASK_AGAIN_SECONDS, UNANSWERED, is_away

PATIENCE = 300  # questions, ten minutes

Answer = TypeVar("Answer")

with warnings.catch_warnings():
    # Taking the place of the worker of the same type is what this class is for.
    warnings.filterwarnings("ignore", message="Type 'Worker'")

    class Worker(ProcessWorker):
        """Starts flow runs as processes."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._mine: set[UUID] = set()

        async def sync_with_backend(self) -> None:
            """Prefect's heartbeat, twice a minute; and an end for runs that nobody else ends."""
            await super().sync_with_backend()
            try:
                lines = await anyio.to_thread.run_sync(reconcile, frozenset(self._mine))
            except UNANSWERED as error:
                self._logger.warning("reconciliation waits for the server: %s", error)
                return
            for line in lines:
                self._logger.info(line)

        async def run(
            self,
            flow_run: FlowRun,
            configuration: ProcessJobConfiguration,
            task_status: TaskStatus[int] | None = None,
        ) -> ProcessWorkerResult:
            """Run a flow run's process to its end.

            Returns:
                Status code 0 where Prefect knows the end already, so that none is reported again;
                the process's own where the report did not arrive.
            """
            self._mine.add(flow_run.id)
            try:
                return await self._run(flow_run, configuration, task_status)
            finally:
                self._mine.discard(flow_run.id)

        async def _run(
            self,
            flow_run: FlowRun,
            configuration: ProcessJobConfiguration,
            task_status: TaskStatus[int] | None,
        ) -> ProcessWorkerResult:
            before = await self._ends_of(flow_run)
            result = await super().run(flow_run, configuration, task_status)
            if not result.status_code:
                return result
            if not await self._ends_of(flow_run) - before and not await self._cancelled(flow_run):
                return result
            return ProcessWorkerResult(status_code=0, identifier=result.identifier)

        async def _ends_of(self, flow_run: FlowRun) -> set[UUID]:
            """The final states of all its attempts so far, whatever came after them."""
            states = await _answered(lambda: self.client.read_flow_run_states(flow_run.id))
            return {state.id for state in states if state.is_final()}

        async def _cancelled(self, flow_run: FlowRun) -> bool:
            """Whether it was being cancelled; it is Cancelled now, as no process is left to say."""
            state = (await _answered(lambda: self.client.read_flow_run(flow_run.id))).state
            if state is None or not state.is_cancelling():
                return False
            message = f"Its process is gone. To go on: prefect flow-run retry {flow_run.id}"
            over = Cancelled(message=message)
            await _answered(lambda: self.client.set_flow_run_state(flow_run.id, over, force=True))
            return True


async def _answered(question: Callable[[], Awaitable[Answer]]) -> Answer:
    """What a question answers, asked again while the server is away; the last time, its error."""
    for _ in range(PATIENCE):
        try:
            return await question()
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if not is_away(error):
                raise
        await anyio.sleep(ASK_AGAIN_SECONDS)
    return await question()


if __name__ == "__main__":
    sys.argv.insert(1, "worker")
    app()
