"""What `atelier plan` says of a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from atelier.cli.tables import plan_table
from atelier.config.memory_advice import fitting
from atelier.config.schema import RunConfig


@dataclass(frozen=True)
class PlanOutput:
    """The table, with what fits a GPU below it; and a line a warning."""

    text: str
    warnings: tuple[str, ...]


def plan_output(config: RunConfig, gpu_gib: float | None = None) -> PlanOutput:
    """Work out a plan; prompt files that are here are read.

    Args:
        gpu_gib: GiB of a GPU that it is to fit.

    Raises:
        PlanError: it cannot work.
        DataError: a prompt file cannot be read.
    """
    from atelier.stages.prompts_here import planned, prompt_warnings

    made, prompts = planned(config)
    lines = [plan_table(made, prompts), *(fitting(config, gpu_gib) if gpu_gib else ())]
    warnings = (*made.warnings, *(prompt_warnings(config, prompts) if prompts else ()))
    return PlanOutput("\n".join(lines), tuple(f"warning: {one}" for one in warnings))
