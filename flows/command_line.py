"""What `atelier run` and `atelier demo` call: one pipeline, its console, its exit code."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from atelier.background import meanwhile
from atelier.errors import AtelierError
from atelier.stages import quiet
from atelier.stages.closing import closing_words
from atelier.stages.console import show_logs
from atelier.stages.run_file import check_opening
from flows.local_platform.server import prefect_server, require_chosen_server
from flows.local_platform.state import running_platform

CRASHED, INTERRUPTED, CANCELLED = 1, 130, 143

logger = logging.getLogger("atelier")


def run_pipeline(
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    run_name: str | None = None,
    resume: str | None = None,
) -> int:
    """Run the flow `grpo`, on the platform's Prefect server or one that ends with the run.

    Shows progress while it runs, and at the end the result, the report and how to open MLflow.

    Returns:
        The process's exit code (design section 5): 0, 2, 3, 75, 143, 130 after Ctrl-C, else 1.
    """
    show_logs(sys.stdout)
    try:
        # Refuse before anything starts.
        require_chosen_server()
        check_opening(recipe, overrides, run_name, resume)
        with _stoppable():
            state = _run_flow(recipe, overrides, run_name, resume)
    except AtelierError as error:
        return _report_error(error)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the line that names the run says how it goes on\n")
        return INTERRUPTED
    result = state.result(raise_on_failure=False)
    if isinstance(result, AtelierError):
        return _report_error(result)
    if state.is_cancelled():
        sys.stderr.write(f"{state.message}\n")
        return CANCELLED
    if isinstance(result, BaseException) or not state.is_completed():
        logger.error("the run crashed: %s", state.message, exc_info=_exception(result))
        return CRASHED
    platform = running_platform()
    sys.stdout.write(closing_words(Path(result), platform.mlflow_url if platform else None))
    return 0


def _run_flow(
    recipe: str | None, overrides: Sequence[str], run_name: str | None, resume: str | None
) -> Any:
    from flows.grpo import grpo

    # Importing the model libraries takes as long as starting a server: do both at once.
    quiet.libraries_by_default()
    warm_up = partial(importlib.import_module, "atelier.stages.heldout")
    with meanwhile("warm-up", warm_up), prefect_server():
        return grpo(recipe, list(overrides), run_name, resume, return_state=True)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends the run like Ctrl-C does: stages stop what they started, then exit code 143."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(CANCELLED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report_error(error: AtelierError) -> int:
    sys.stderr.write(f"error: {error}\n")
    return error.exit_code


def _exception(result: Any) -> BaseException | None:
    return result if isinstance(result, BaseException) else None
