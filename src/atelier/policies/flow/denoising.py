"""From noise to an image without a stochastic step, as evaluations and examinations paint."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from atelier.dynamics.transitions import ode
from atelier.policies.flow.schedules import Schedule


def denoised(x: Tensor, schedule: Schedule, velocity: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Latents [B, ...] after all steps of the Euler ODE.

    Args:
        velocity: of latents [B, ...] at a timestep [], as the schedule has it.
    """
    for step, timestep in zip(schedule.steps, schedule.timesteps, strict=True):
        x = ode(x, velocity(x, timestep), step)
    return x


def guided_velocity(without: Tensor, with_prompt: Tensor, guidance: float) -> Tensor:
    """Away from the velocity without a prompt; a guidance of 1 is that with it."""
    return without + guidance * (with_prompt - without)
