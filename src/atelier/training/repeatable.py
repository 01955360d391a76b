"""The same numbers from the same start: what a resumed run needs to end as an undisturbed one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atelier.config.sections.launch import LaunchConfig
from atelier.errors import PlanError

# What cuBLAS wants before it sums in a fixed order; read when it is first used.
CUBLAS_WORKSPACE = ":4096:8"


@contextmanager
def repeatable(launch: LaunchConfig) -> Iterator[None]:
    """Only operations that sum in a fixed order, where launch.deterministic asks for them.

    On a GPU the backward pass of attention adds up in whatever order its blocks end: two runs of
    one seed part in their first update.

    Raises:
        PlanError: an operation has no such form.
    """
    before = torch.are_deterministic_algorithms_enabled()
    if launch.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    # Memory that nobody reads uninitialised need not be filled first.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(launch.deterministic)
    try:
        yield
    except RuntimeError as error:
        if not launch.deterministic or "use_deterministic_algorithms" not in str(error):
            raise
        operation = str(error).split("does not have")[0].strip()
        raise PlanError(
            f"launch.deterministic: {operation} has no repeatable form here; set "
            "launch.deterministic=false, and a resumed run may differ in its last bits"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before)
