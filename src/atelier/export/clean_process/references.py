"""The file of what a trainer made (verification/reference.safetensors)."""

from __future__ import annotations

import json
from typing import Any


def header_of(reference: str) -> dict[str, Any]:
    """All that is no array in it."""
    from safetensors import safe_open

    with safe_open(reference, framework="pt") as file:
        return {name: json.loads(text) for name, text in file.metadata().items()}


def arrays_of(reference: str) -> dict[str, Any]:
    """All that is: {name: tensor}."""
    from safetensors import safe_open

    with safe_open(reference, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
