"""Puts right what killed processes left behind: on this machine, and in Prefect's records.

Prefect keeps a run whose process is gone Running or Cancelling for ever. Called
by `atelier up`, at the start of every flow run and every half minute by the worker; it disturbs
nothing that lives, here or on another machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelled, Crashed

from atelier.processes.leftovers import clean_up
from atelier.stages.run_file import runs_root
from tasks.identity import process_of
from tasks.outcome import command_to_go_on
from tasks.server import ask_server
from tasks.slots import release_leases

FLOWS = (
    *("grpo", "prepare", "rewards", "train", "evaluate", "export", "report", "compare"),
    "node",
)
OURS = FlowFilter(name=FlowFilterName(any_=list(FLOWS)))
# A living run says which process it is within a second of its start, and a worker starts a process
# for a run it has taken within some. One that has not done so after this time will not.
SILENT_SECONDS = 120.0
PENDING_SECONDS = 900.0
UNFINISHED = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
UNFINISHED_TASK = TaskRunFilter(
    state=TaskRunFilterState(
        type=TaskRunFilterStateType(
            any_=[StateType.PENDING, StateType.RUNNING, StateType.SCHEDULED]
        )
    )
)
PAGE = 200


def reconcile(but: Collection[UUID] = ()) -> list[str]:
    """End what guards of dead owners left, and runs and leases of dead processes.

    Args:
        but: flow runs whose end somebody else reports.

    Returns:
        One line for everything that was done; empty when all was well.
    """
    lines = clean_up(runs_root())
    with ask_server() as client:
        for run in unfinished(client):
            if run.id in but:
                continue
            # Read again: it may have ended well since, and then its process is gone, too.
            if is_abandoned(run) and is_abandoned(run := client.read_flow_run(run.id)):
                lines.append(_end(client, run))
                release_leases(client, run)
        for run in broken_off(client):
            end_task_runs(client, run.id)
    return lines


def end_task_runs(client: SyncPrefectClient, run_id: UUID) -> None:
    """Set unfinished task runs to Crashed, of a flow run that does not work on them any more.

    A killed process leaves them Running, whoever then says of its flow run that it is over.
    """
    this = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
    for task_run in client.read_task_runs(flow_run_filter=this, task_run_filter=UNFINISHED_TASK):
        state = Crashed(message="The process of its flow run is gone.")
        client.set_task_run_state(task_run.id, state, force=True)


def broken_off(client: SyncPrefectClient) -> Iterator[FlowRun]:
    """Ended flow runs that left task runs unfinished and whose process is gone."""
    states = FlowRunFilterStateType(any_=[StateType.CRASHED, StateType.CANCELLED])
    for run in client.read_flow_runs(
        flow_filter=OURS,
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=states)),
        task_run_filter=UNFINISHED_TASK,
        limit=PAGE,  # the next reconciliation does the rest
    ):
        process = process_of(run)
        if process is None or process.is_gone:
            yield run


def is_abandoned(run: FlowRun) -> bool:
    """Whether a run is unfinished and nobody works on it any more.

    False for every process of another machine: only that machine can tell.
    """
    if run.state is None or run.state.type not in UNFINISHED:
        return False
    process = None if run.state.is_pending() else process_of(run)
    if process is not None:
        return process.is_gone
    patience = PENDING_SECONDS if run.state.is_pending() else SILENT_SECONDS
    return datetime.now(UTC) - run.state.timestamp > timedelta(seconds=patience)


def unfinished(client: SyncPrefectClient) -> Iterator[FlowRun]:
    """Unfinished runs of our flows. Paged to the end before any is changed."""
    states = FlowRunFilterStateType(any_=list(UNFINISHED))
    found: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_filter=OURS,
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=states)),
            limit=PAGE,
            offset=len(found),
        )
        found += page
        if len(page) < PAGE:
            return iter(found)


def _end(client: SyncPrefectClient, run: FlowRun) -> str:
    flow = client.read_flow(run.flow_id).name
    again = command_to_go_on(flow, run.parameters, run.id, run.deployment_id is not None)
    message = f"Its process is gone. To go on: {again}"
    cancelling = run.state is not None and run.state.is_cancelling()
    state = Cancelled(message=message) if cancelling else Crashed(message=message)
    client.set_flow_run_state(run.id, state, force=True)
    return f"flow run {run.name} ({run.id}): its process is gone, now {state.name}"
