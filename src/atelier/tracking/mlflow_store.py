"""Where MLflow keeps a project's runs, and the command that shows them. Imports no mlflow."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from atelier.config.paths import from_root, without_machine_paths
from atelier.config.schema import RunConfig

DEFAULT_URI = "sqlite:///.atelier/mlflow.db"
_SQLITE = "sqlite:///"


def tracking_uri(config: RunConfig) -> str:
    """`tracking.mlflow_uri`, or the project's store; relative paths are the repository's."""
    return _absolute(config.tracking.mlflow_uri) if config.tracking.mlflow_uri else project_uri()


def project_uri() -> str:
    """The project's store: MLFLOW_TRACKING_URI, as everywhere in MLflow, or a SQLite file."""
    return _absolute(os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI)


def _absolute(uri: str) -> str:
    path = sqlite_path(uri)
    return f"{_SQLITE}{path}" if path else uri


def sqlite_path(uri: str) -> Path | None:
    """The database file of a SQLite URI, absolute; None for any other store."""
    return from_root(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def shown_uri(uri: str) -> str:
    """A store as it may be written into logs and files: without password, or machine's paths."""
    path = sqlite_path(uri)
    if path is not None:
        return f"{_SQLITE}{without_machine_paths(str(path))}"
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def creation_lock(path: Path) -> Path:
    """Held while a SQLite store is created: by several processes at once, all but one fail."""
    return path.with_suffix(".lock")


def artifacts_beside(path: Path) -> str:
    """Where a SQLite store's artifacts go: a folder beside it, absolute because MLflow keeps it."""
    return (path.parent / "mlflow-artifacts").as_uri()


def ui_command(uri: str, port: int = 5000) -> str:
    """The shell command that opens the MLflow UI on this store, or its address if it has one.

    One worker and no job runner: MLflow's defaults start ten processes and take 2 GB.
    """
    if sqlite_path(uri) is None:
        return uri
    mlflow = Path(sys.executable).with_name("mlflow")
    arguments = ["server", "--backend-store-uri", uri, "--workers", "1", "--port", str(port)]
    quiet = "MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"
    return f"{quiet} {shlex.join([_short(mlflow), *arguments])}"


def _short(path: Path) -> str:
    """Relative to the current directory where that is shorter to read."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
