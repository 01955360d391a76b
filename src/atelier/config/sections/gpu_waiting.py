"""Waiting for GPUs that other programs use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atelier.config.sections.base import PositiveFloat, Section, operational


class GpuWaitConfig(Section):
    """Before a stage computes, it waits until as many GPUs as it needs are left alone by programs
    that know nothing of Atelier. Runs of Atelier keep out of each other's way without this."""

    enabled: bool = operational(False, "Whether to wait; needs nvidia-ml-py.")
    memory: PositiveFloat = operational(
        500.0, "A GPU is free below so many megabytes in use, without what its driver reserves."
    )
    utilization: Annotated[float, Field(gt=0, le=100)] = operational(
        10.0, "And below so many percent of utilization, where it says any."
    )
    every: Annotated[float, Field(ge=0.1, le=3600)] = operational(
        60.0, "Seconds between two looks."
    )
    limit: PositiveFloat | None = operational(
        None, "Seconds after which the run stops, resumable; default: none."
    )
