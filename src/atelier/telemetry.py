"""Every dependency's own reporting home is off unless the user turns it on.

Call `off_by_default()` before the dependencies are imported: several read their switch at import
time. A variable that is already set is left alone, so `HF_HUB_DISABLE_TELEMETRY=0 atelier run`
does what it says. Each name was read in the installed sources; children inherit them.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SWITCHES = {
    # The common switch: Prefect's client, MLflow (which knows only "true"), huggingface_hub.
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # diffusers, transformers and peft report through huggingface_hub.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DVC_NO_ANALYTICS": "true",
    # The client library DVC and its siblings share; any value switches it off.
    "ITERATIVE_DO_NOT_TRACK": "true",
    # ONNX Runtime's official builds report by default (Privacy.md in its package).
    "ORT_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "WANDB_ERROR_REPORTING": "false",
}


def off_by_default(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set every switch in `environment` that the user has not set."""
    for name, value in SWITCHES.items():
        environment.setdefault(name, value)
