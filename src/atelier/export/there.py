"""Whether what is to be verified is there: asked before anything that takes long is imported."""

from __future__ import annotations

from pathlib import Path

from atelier.config.paths import is_directory
from atelier.errors import CheckpointError


def require_there(path: Path) -> None:
    """Raises CheckpointError where there is no such directory."""
    if not is_directory(path):
        raise CheckpointError(
            f"{path}: no run and no such directory; name a run's, such as runs/<id>, or an "
            "exported one, such as runs/<id>/export or a copy of it"
        )
