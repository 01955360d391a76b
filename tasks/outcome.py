"""What an error means for Prefect: whether a retry can mend it, and else what state it leads to."""

from __future__ import annotations

from typing import Any

from prefect import Task
from prefect.client.schemas.objects import TaskRun
from prefect.states import Failed, State

from atelier.errors import AtelierError, Stopped


def crashed(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Retry condition: only crashes. A bad configuration stays bad, and a run that stopped itself
    (75) waits for a person."""
    return not isinstance(state.result(raise_on_failure=False), AtelierError)


def failed(error: AtelierError) -> State[Any]:
    """The state of a run or task that ended with a message and not with a traceback."""
    name = "Stopped" if isinstance(error, Stopped) else "Failed"
    return Failed(name=name, message=str(error), data=error)


def value_of(state: State[Any]) -> Any:
    """What a task returned; the error of a failed one is raised here, in the flow."""
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return result
