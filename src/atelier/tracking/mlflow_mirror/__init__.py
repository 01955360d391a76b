"""MLflow shows what the run directory holds. The only package that imports mlflow.

`sync(run)` looks at a run directory and sends what MLflow does not have yet, so it may be called at
any time, again and again; after an outage the next call catches up. It never fails or stalls a run:
every request has a time limit, every call a deadline, and an MLflow that does not answer is left
alone for a while. Stages call it in the background (stages/mirroring.py).

    python -m atelier.tracking.mlflow_mirror RUN_DIRECTORY      send what an outage kept back

    store.py      the client, and a store that is created once
    memory.py     <run>/mlflow.json: what was sent
    target.py     the run's run in MLflow and a child run a stage
    series.py     numbers by step
    contents.py   parameters, prompt tables, evaluations, images, the page
    traces.py     sampled questions to judges, as traces
    models.py     exports as logged models and model versions
    mirror.py     all of it in order

What a kill left open between sending and remembering is settled by asking MLflow: steps by the
metric history, runs and models by a tag, images by their names.
"""

from __future__ import annotations

import logging
import os
import time

from atelier import telemetry
from atelier.config.resolve import load_stage_config
from atelier.processes.locks import hold
from atelier.tracking.mlflow_mirror.mirror import send
from atelier.tracking.mlflow_mirror.target import DeadlineReached
from atelier.tracking.mlflow_store import shown_uri, tracking_uri
from atelier.tracking.run_directory import RunDirectory

__all__ = ["is_left_alone", "sync"]

telemetry.off_by_default()
# MLflow's own defaults block a call for four minutes when its server is gone.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")

logger = logging.getLogger(__name__)

LEAVE_ALONE_SECONDS = 30.0

# Stores that did not answer, and until when they are not asked.
_left_alone_until: dict[str, float] = {}


def sync(run: RunDirectory, deadline_seconds: float = 30.0) -> bool:
    """Send what MLflow does not have yet of this run.

    Returns:
        Whether everything was sent. Otherwise (MLflow unreachable, deadline reached, another
        process at it) nothing is lost, and a later call sends the rest.
    """
    deadline = time.monotonic() + deadline_seconds
    config = load_stage_config(run.config("report"))
    uri = tracking_uri(config)
    if is_left_alone(uri):
        return False
    try:
        with hold(run.root / "locks" / "mlflow.pid") as other:
            if other is not None:
                return False
            send(run, config, uri, deadline)
        _left_alone_until.pop(uri, None)
    except DeadlineReached:
        return False
    except Exception as error:  # whatever MLflow does, it must not cost the run
        _left_alone_until[uri] = time.monotonic() + LEAVE_ALONE_SECONDS
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        why = first_line.replace(uri, shown_uri(uri))
        logger.warning("MLflow at %s: %.200s; the run goes on, sent later", shown_uri(uri), why)
        logger.debug("MLflow mirror", exc_info=error)
        return False
    return True


def is_left_alone(uri: str) -> bool:
    """Whether this MLflow did not answer a short while ago, and is not asked yet."""
    return time.monotonic() < _left_alone_until.get(uri, 0.0)
