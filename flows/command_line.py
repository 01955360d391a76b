"""What `atelier run`, `atelier demo` and `atelier node` call: the console, the exit code."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from atelier.background import meanwhile
from atelier.config.gpu_seen import require_gpu
from atelier.config.paths import runs_root
from atelier.errors import AtelierError, ConfigError, PlanError
from atelier.stages import quiet
from atelier.stages.closing import closing_words
from atelier.stages.console import show_logs
from atelier.stages.nodes.board import WAIT_SECONDS
from atelier.stages.run_file import check_opening, opened_run
from flows.local_platform.server import prefect_server, require_chosen_server
from flows.local_platform.state import running_platform

CRASHED, INTERRUPTED, CANCELLED = 1, 130, 143
MENDED_FIRST = (ConfigError.exit_code, PlanError.exit_code)  # resumed as it is, it fails again
STDERR = 2

logger = logging.getLogger("atelier")


def run_pipeline(
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    run_name: str | None = None,
    resume: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Run the flow `grpo`, on the platform's Prefect server or one that ends with the run.

    Shows progress while it runs, and at the end the result, the report and how to open MLflow.
    With a `launch.node_rank` above 0 it opens no run, but helps the one of node 0.

    Returns:
        The process's exit code: 0, 2, 3, 75, 143, 130 after Ctrl-C, else 1.
    """
    show_logs(sys.stdout)
    try:
        # Refuse before anything starts.
        config = check_opening(recipe, overrides, run_name, resume, variables)
        launch = config.launch
        if launch.node_rank:
            return run_node(launch.master_address, launch.master_port, launch.node_rank)
        require_gpu(config)
        require_chosen_server()
        with _stoppable():
            state = _run_flow(recipe, overrides, run_name, resume, variables)
    except AtelierError as error:
        return _report_error(error)
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted. {_how_to_go_on()}\n")
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


def run_node(address: str, port: int, rank: int | None, wait: float = WAIT_SECONDS) -> int:
    """Help the run that trains at an address, as one of its nodes.

    Args:
        rank: which one, from 1 on; None: one that is missing.
        wait: seconds that node 0 may take until it trains.

    Returns:
        The process's exit code: that of node 0's training, or why this node did not help it.
    """
    from atelier.stages.nodes.helper import help_train

    show_logs(sys.stdout)
    try:
        with _stoppable():
            code = help_train(address, port, rank, wait)
    except AtelierError as error:
        return _report_error(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    logger.info("node 0 is done with training (exit code %d)", code)
    return code


def _run_flow(
    recipe: str | None,
    overrides: Sequence[str],
    run_name: str | None,
    resume: str | None,
    variables: Mapping[str, str] | None,
) -> Any:
    quiet.libraries_by_default()
    with ExitStack() as inside:
        inside.enter_context(prefect_server(before=partial(_import_libraries, inside)))
        from flows.grpo import grpo

        taken = dict(variables or {}) or None
        return grpo(recipe, list(overrides), run_name, resume, taken, return_state=True)


def _import_libraries(inside: ExitStack) -> None:
    """Prefect's flow, and then in a thread the model libraries: each takes as long as a server
    needs to start. One after the other, since two threads that import the same may meet."""
    importlib.import_module("flows.grpo")
    models = partial(importlib.import_module, "atelier.stages.heldout")
    inside.enter_context(meanwhile("warm-up", models))


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends the run like Ctrl-C does: stages stop what they started, then exit code 143.

    A stop takes seconds, so Ctrl-C is answered at once.
    """
    said = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal said
        if not said:  # past Python's buffer, which this may be in the middle of
            os.write(STDERR, b"\nstopping; what the run has started ends first, some seconds\n")
        said = True
        raise KeyboardInterrupt

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(CANCELLED)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell ignores it
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _how_to_go_on() -> str:
    run = opened_run()
    if run is None:
        return "No run was opened; start it again"
    name = run.root.name if run.root.parent == runs_root() else run.root
    return f"To go on: atelier run --resume {name}"


def _report_error(error: AtelierError) -> int:
    sys.stderr.write(f"error: {error}\n")
    if opened_run() is not None and error.exit_code not in MENDED_FIRST:
        sys.stderr.write(f"{_how_to_go_on()}\n")
    return error.exit_code


def _exception(result: Any) -> BaseException | None:
    return result if isinstance(result, BaseException) else None
