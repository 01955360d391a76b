"""What a mirror is opened with, and what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from atelier.tracking.mirrors.rows import Row


@dataclass(frozen=True)
class Opening:
    """One run, as a mirror is told of it.

    Attributes:
        id: the same whenever the run is opened again with the configuration that it has; after a
            change of it another one, so that it is another run there, as it is in MLflow.
        parameters: dotted key -> value.
        folder: for the mirror's own files.
    """

    id: str
    project: str
    run_name: str
    parameters: Mapping[str, Any]
    folder: Path
    mode: Literal["offline", "online"]


class Session(Protocol):
    """A run that is open there."""

    def log(self, row: Row) -> None: ...

    def close(self) -> None:
        """Nothing more comes from this process; what was logged is on disk, or sent."""
        ...
