"""What an error means for Prefect: the state it leads to, and whether a retry can mend it.

Completed                      0
Failed                         2, 3: a bad configuration, a refused plan
Failed, named `Stopped`        75: the run stopped itself; a person decides, then resumes it
Cancelled                      143, or a cancel in Prefect
Crashed                        everything else: a retry resumes it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import TaskRun
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Crashed, Failed, State

from atelier.errors import AtelierError, Stopped
from atelier.stages.train import CANCELLED

CRASHED = AtelierError.exit_code


def can_be_retried(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Retry condition: only crashes. A bad configuration stays bad, and a run that stopped itself
    (75) waits for a person."""
    return not isinstance(state.result(raise_on_failure=False), AtelierError)


def failed(error: AtelierError) -> State[Any]:
    """The state of a task that ended with a message and not with a traceback."""
    name = "Stopped" if isinstance(error, Stopped) else "Failed"
    return Failed(name=name, message=str(error), data=error)


def state_of(error: Exception) -> State[Any]:
    """The state of a flow run that an error ended, with the command that goes on with it."""
    if not isinstance(error, AtelierError):
        text = f"{type(error).__name__}: {error}"
        return Crashed(message=and_go_on(text), data=error)
    if error.exit_code == CANCELLED:
        return cancelled(str(error), error)
    if error.exit_code == CRASHED:
        return Crashed(message=and_go_on(str(error)), data=error)
    if isinstance(error, Stopped):
        return Failed(name="Stopped", message=and_go_on(str(error)), data=error)
    return failed(error)


def cancelled(why: str, error: AtelierError | None = None) -> State[Any]:
    """The state of a flow run that was cancelled and has stopped all that it started."""
    return Cancelled(message=and_go_on(why), data=error)


def and_go_on(message: str) -> str:
    """The message of a state that a command goes on from. One line: Prefect logs it as it is
    written in a program, a line's end as two letters."""
    return f"{message.rstrip('.')}. To go on: {resume_command()}"


def resume_command() -> str:
    """What goes on with this flow run, in its directory."""
    parameters: dict[str, Any] = flow_run.parameters
    return command_to_go_on(flow_run.flow_name, parameters, flow_run.id, bool(deployment.id))


def command_to_go_on(
    flow: str, parameters: Mapping[str, Any], run_id: object, is_deployed: bool
) -> str:
    """What goes on with a flow run.

    Args:
        flow: name of its flow; only some have a directory to go on in.
        is_deployed: whether a worker started it, which then starts it again.
    """
    if is_deployed:
        return f"prefect flow-run retry {run_id}"
    run = parameters.get("resume") or parameters.get("run")
    if run is None and flow not in ("grpo", "prepare"):
        return "start it again"
    return f"atelier run --resume {run or run_id}"


def value_of(state: State[Any]) -> Any:
    """What a task returned; the error of a failed one is raised here, in the flow."""
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return result
