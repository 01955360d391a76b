"""One of the other nodes of a run."""

from __future__ import annotations

from typing import Any

from prefect import Task

from atelier.errors import AtelierError
from atelier.stages.nodes import helper
from tasks.outcome import failed, value_of


def help_train(address: str, port: int, rank: int | None, wait: float) -> None:
    """Train with the run that meets there, until it is done.

    Raises:
        AtelierError: it could not help, or node 0's training ended with an exit code.
    """
    task = Task(_help, name="help", task_run_name="help")
    value_of(task(address, port, rank, wait, return_state=True))


def _help(address: str, port: int, rank: int | None, wait: float) -> Any:
    try:
        code = helper.help_train(address, port, rank, wait)
    except AtelierError as error:
        return failed(error)
    return failed(_Ended(code)) if code else None


class _Ended(AtelierError):
    """Node 0's training ended; its own run says why."""

    def __init__(self, code: int) -> None:
        super().__init__(f"node 0 ended with exit code {code}: its run says why")
        self.exit_code = code
