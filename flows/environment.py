"""Prefect as Atelier uses it: state inside the project, no reporting home, logs of the library.

Every variable that is set already is left alone, so a server of one's own is used by setting
PREFECT_API_URL, and another home by PREFECT_HOME.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from atelier import telemetry
from atelier.config.paths import repository_root


def settle(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set Prefect's variables that the user has not set. To be called before prefect's import."""
    telemetry.off_by_default(environment)
    environment.setdefault("PREFECT_HOME", str(repository_root() / ".prefect"))
    # What stages log reaches the run's page; threads without a run in their context stay silent.
    environment.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "atelier")
    environment.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
    if not environment.get("PREFECT_API_URL"):
        # Set but empty, it starts a server that logs tracebacks of its services (spec platform 7).
        environment.pop("PREFECT_API_URL", None)
        # On a temporary server the console shows the stages' own lines, and Prefect's nowhere.
        environment.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
        environment.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
