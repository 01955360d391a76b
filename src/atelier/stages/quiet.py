"""What model libraries do unasked, off unless asked for: progress bars, notes, starting CUDA."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SWITCHES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DIFFUSERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # Imports ask whether there is a GPU. Asked of the driver library and not of CUDA, because CUDA
    # reads only once which GPUs it may use, and that is decided later (processes/gpus.py).
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def libraries_by_default(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what the user has not set. To be called before the libraries are imported."""
    for name, value in SWITCHES.items():
        environment.setdefault(name, value)
