"""Parameters of whole runs that only `make test-slow` starts."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*parameters: Any) -> list[Any]:
    """Each as a parameter with the mark; of several arguments as a tuple."""
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow)
        for one in parameters
    ]
