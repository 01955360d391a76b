"""The Python that a managed server runs in: the pipeline's, or one of an environment of its own."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from atelier.config.paths import from_root, repository_root
from atelier.environments import DECLARED, environment
from atelier.errors import ConfigError

logger = logging.getLogger(__name__)


def interpreter(name: str | None, on_gpu: bool, key: str) -> Path:
    """The interpreter of an environment, which is made first where it is declared and missing.

    Args:
        name: as `server.environment` has it; None is the pipeline's own.
        on_gpu: which variant is made.
        key: where it is configured, for messages.

    Raises:
        ConfigError: there is no such environment.
        AtelierError: it could not be installed.
    """
    if name is None:
        return Path(sys.executable)
    if name in DECLARED:
        found = environment(name, repository_root())
        if found.state() != "current":
            logger.info("%s: installing the environment %s, once; some minutes", key, name)
        return found.create("gpu" if on_gpu else "cpu")
    python = from_root(name) / "bin" / "python"
    if not python.exists():
        key = key.rpartition("-")[0]
        raise ConfigError(
            f"{key}.server.environment: {name!r} is no environment: neither declared below "
            f"environments/ ({', '.join(DECLARED)}) nor a folder with bin/python"
        )
    return python
