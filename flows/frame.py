"""What every flow has in common: it says which process it is, tidies up after dead ones, can be
cancelled without its worker, and turns its errors into states (tasks/outcome.py)."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import State

from atelier.errors import AtelierError
from atelier.stages.console import show_logs
from flows.local_platform.reconcile import end_task_runs, reconcile
from flows.local_platform.state import running_platform
from tasks.cancellation import CancellationWatch
from tasks.identity import announce
from tasks.outcome import cancelled, state_of
from tasks.quiet_errors import without_tracebacks
from tasks.server import UNANSWERED, ask_server
from tasks.slots import release_leases

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("atelier.flow")


def framed(body: Callable[P, R]) -> Callable[P, R | State[Any]]:
    """Decorator of a flow's function, below `@flow`."""

    @functools.wraps(body)
    def flow_body(*args: P.args, **kwargs: P.kwargs) -> R | State[Any]:
        without_tracebacks()
        show_logs(sys.stdout)  # and, by the level it sets, to the run's page in Prefect
        run_id = UUID(str(flow_run.id))
        with CancellationWatch(run_id) as watch:
            try:
                _begin(run_id)
                result = body(*args, **kwargs)
            except TerminationSignal:
                if not watch.is_cancelled():
                    raise  # Crashed, and resumed by a retry
                return cancelled("Cancelled; everything it had started has ended.")
            except Exception as error:
                state = state_of(error)
                if state.is_crashed() and not isinstance(error, AtelierError):
                    logger.error("the run crashed", exc_info=error)
                return state
            # Also in its last seconds: Prefect would leave such a run Cancelling for ever.
            return cancelled("Cancelled when it was done.") if watch.is_cancelled() else result

    return flow_body


def name_of_run() -> str:
    """What a flow run is called: by its parameters, since people chose those."""
    parameters: dict[str, Any] = flow_run.parameters
    flow: str = flow_run.flow_name
    what = parameters.get("run_name") or parameters.get("recipe")
    if what is None:
        run = parameters.get("run") or parameters.get("resume") or str(flow_run.id)
        what = Path(run).name[:8]
    return what if flow == "grpo" and what in parameters.values() else f"{flow} {what}"


def mlflow_ui() -> str | None:
    """The address of the MLflow UI, where a platform runs."""
    platform = running_platform()
    return platform.mlflow_url if platform else None


def _begin(run_id: UUID) -> None:
    with ask_server() as client:
        run = client.read_flow_run(run_id)
        announce(client, run)
        # What an earlier attempt left that was killed.
        release_leases(client, run)
        end_task_runs(client, run_id)
    try:
        for line in reconcile():
            logger.warning("%s", line)
    except UNANSWERED as error:
        logger.warning("what dead runs left is tidied up later: %s", error)
