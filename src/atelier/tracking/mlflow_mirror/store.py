"""MLflow's client for a store, and the experiment in it."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atelier.config.schema import RunConfig
from atelier.tracking.mlflow_store import artifacts_beside, creation_lock, sqlite_path

_ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
_clients: dict[str, Any] = {}


def client(uri: str) -> Any:
    """A client whose store is ready. Creating a SQLite store in several processes at once fails
    in all but one, so it is done under a file lock."""
    from mlflow import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    path = sqlite_path(uri)
    if uri in _clients:
        return _clients[uri]
    if path is None:
        return MlflowClient(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    with creation_lock(path).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Else the experiment `Default` would keep its artifacts in the current directory.
        with _set(_ARTIFACT_ROOT, artifacts_beside(path)):
            if not path.exists():
                _create(path)
            found = MlflowClient(uri)
            found.search_experiments(max_results=1)
    _clients[uri] = found
    return found


def _create(path: Path) -> None:
    """A new store, aside and then renamed. It takes seconds, in which a short stage's process may
    end, and a half-made store is refused by MLflow for ever."""
    from mlflow import MlflowClient

    aside = path.with_name(f".{path.name}.new")
    for left in (aside, aside.with_name(f"{aside.name}-journal")):
        left.unlink(missing_ok=True)  # of a process that ended: the lock is ours
    MlflowClient(f"sqlite:///{aside}").search_experiments(max_results=1)
    aside.replace(path)


@contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    """An environment variable, if the user has not set it."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def experiment(client: Any, config: RunConfig, uri: str) -> str:
    """The id of `tracking.experiment`, which is created where it is not there."""
    from mlflow.exceptions import MlflowException

    name = config.tracking.experiment
    path = sqlite_path(uri)
    location = artifacts_beside(path) if path else None
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException as error:
            found = client.get_experiment_by_name(name)  # another run may have been faster
            if found is None:
                raise error
    return str(found.experiment_id)
