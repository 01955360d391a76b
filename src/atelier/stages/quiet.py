"""Progress bars and notes of the model libraries: off unless asked for."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SWITCHES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def libraries_by_default(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what the user has not set. To be called before the libraries are imported."""
    for name, value in SWITCHES.items():
        environment.setdefault(name, value)
