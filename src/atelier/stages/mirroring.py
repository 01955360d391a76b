"""The mirrors in the background of the stages, so that none waits for them: MLflow, and others.

Importing and opening MLflow takes seconds, and its server may not answer. What is left when the
process ends is sent then, within a few seconds; what even that does not reach is sent by the next
stage, or by `python -m atelier.tracking.mlflow_mirror RUN`, and by `atelier.tracking.mirrors`.
"""

from __future__ import annotations

import atexit

# MLflow imports it, and where a stage ends at once, only while the interpreter shuts down: too late
# for what it registers there.
import concurrent.futures.thread  # noqa: F401
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from atelier.config.resolve import load_stage_config
from atelier.errors import AtelierError
from atelier.tracking import mirrors, mlflow_mirror
from atelier.tracking.mlflow_store import tracking_uri
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
AT_EXIT_SECONDS = 8.0

_followers: dict[Path, list[_Follower]] = {}


class _Follower(threading.Thread):
    """Mirrors one run every few seconds and whenever it is nudged."""

    def __init__(self, name: str, run: RunDirectory, sync: Callable[[RunDirectory], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._run, self._sync = run, sync
        self.nudged = threading.Event()

    def run(self) -> None:
        while True:
            self.nudged.clear()
            try:
                self._sync(self._run)
            except AtelierError as error:  # no longer a run that can be read
                logger.warning("%s is sent nothing more of this run: %s", self.name, error)
                return
            self.nudged.wait(EVERY_SECONDS)


def follow(run: RunDirectory) -> None:
    """Mirror the run from now on, and now."""
    followers = _followers.get(run.root)
    if followers is not None:
        for one in followers:
            one.nudged.set()
        return
    followers = _followers[run.root] = [_Follower("MLflow", run, mlflow_mirror.sync)]
    if mirrors.has_mirrors(run):
        followers.append(_Follower("mirrors", run, mirrors.sync))
    for one in followers:
        one.start()
    atexit.register(flush, run, AT_EXIT_SECONDS)


def flush(run: RunDirectory, deadline_seconds: float = 30.0) -> bool:
    """Wait until everything is sent, MLflow does not answer or the deadline is reached.

    Returns:
        Whether MLflow has everything.
    """
    deadline = time.monotonic() + deadline_seconds
    others = threading.Thread(target=_flush_mirrors, args=(run, deadline), daemon=True)
    if mirrors.has_mirrors(run):
        others.start()
    sent = _flush_mlflow(run, deadline)
    if others.ident is not None:
        others.join(max(0.0, deadline - time.monotonic()))
    return sent


def _flush_mlflow(run: RunDirectory, deadline: float) -> bool:
    uri = tracking_uri(load_stage_config(run.config("report")))
    while (left := deadline - time.monotonic()) > 0 and not mlflow_mirror.is_left_alone(uri):
        if mlflow_mirror.sync(run, left):
            return True
        time.sleep(0.1)
    return False


def _flush_mirrors(run: RunDirectory, deadline: float) -> None:
    try:
        mirrors.flush(run, deadline)
    except AtelierError as error:
        logger.warning("mirrors: %s", error)
