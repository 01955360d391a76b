"""An error that was written for people leaves its message in a run's log, and no traceback.

The message is in the state, and Prefect logs every state. But it also raises the error of a run
that ended badly once more, to log it as an "unexpected exception", and logs a failed task without
retries with the traceback of no exception at all. A crash is anything else, and keeps its lines.
"""

from __future__ import annotations

import logging

from prefect.exceptions import CancelledRun

from atelier.errors import AtelierError

LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")


def without_tracebacks() -> None:
    """Keep such lines out of this process's logs. Once or often is the same."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_says_something)


def _says_something(record: logging.LogRecord) -> bool:
    if not record.exc_info:
        return True
    error = record.exc_info[1]
    return error is not None and not isinstance(error, AtelierError | CancelledRun)
