"""The MLflow mirror in the background of the stages, so that none waits for it.

Importing and opening MLflow takes seconds, and its server may not answer. What is left when the
process ends is sent then, within a few seconds; what even that does not reach is sent by the next
stage, or by `python -m atelier.tracking.mlflow_mirror RUN`.
"""

from __future__ import annotations

import atexit

# MLflow imports it, and where a stage ends at once, only while the interpreter shuts down: too late
# for what it registers there.
import concurrent.futures.thread  # noqa: F401
import logging
import threading
import time
from pathlib import Path

from atelier.config.resolve import load_stage_config
from atelier.errors import AtelierError
from atelier.tracking import mlflow_mirror
from atelier.tracking.mlflow_store import tracking_uri
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
AT_EXIT_SECONDS = 8.0

_followers: dict[Path, _Follower] = {}


class _Follower(threading.Thread):
    """Mirrors one run every few seconds and whenever it is nudged."""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__(name="mlflow-mirror", daemon=True)
        self._run = run
        self.nudged = threading.Event()

    def run(self) -> None:
        while True:
            self.nudged.clear()
            try:
                mlflow_mirror.sync(self._run)
            except AtelierError as error:  # no longer a run that can be read
                logger.warning("MLflow is sent nothing more of this run: %s", error)
                return
            self.nudged.wait(EVERY_SECONDS)


def follow(run: RunDirectory) -> None:
    """Mirror the run from now on, and now."""
    follower = _followers.get(run.root)
    if follower is not None:
        follower.nudged.set()
        return
    follower = _followers[run.root] = _Follower(run)
    follower.start()
    atexit.register(flush, run, AT_EXIT_SECONDS)


def flush(run: RunDirectory, deadline_seconds: float = 30.0) -> bool:
    """Wait until everything is sent, MLflow does not answer or the deadline is reached.

    Returns:
        Whether everything was sent.
    """
    uri = tracking_uri(load_stage_config(run.config("report")))
    deadline = time.monotonic() + deadline_seconds
    while (left := deadline - time.monotonic()) > 0 and not mlflow_mirror.is_left_alone(uri):
        if mlflow_mirror.sync(run, left):
            return True
        time.sleep(0.1)
    return False
