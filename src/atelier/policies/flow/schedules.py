"""The denoising steps of rollouts and of images, as the configuration wants them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from atelier.config.sections.rollout import RolloutConfig
from atelier.dynamics.schedules import compressed, exponential_shift, linear_shift, resolution_mu
from atelier.dynamics.solvers import CleanEstimate, dpm_solver
from atelier.dynamics.transitions import Step, ode, steps_of
from atelier.dynamics.windows import Window


@dataclass(frozen=True)
class Schedule:
    """Steps, the timesteps [N] the model is given for them, and from which step on (if at all) they
    are so few that a multistep solver takes them."""

    steps: list[Step]
    timesteps: Tensor
    tail: int | None = None


def schedule_of(
    scheduler: Any, num_steps: int, device: torch.device, **shift_of_size: float
) -> Schedule:
    """What a scheduler of diffusers would take for so many steps; it is left as it was.

    Args:
        shift_of_size: `mu`, where the scheduler shifts by an image's size.
    """
    scheduler = copy.deepcopy(scheduler)
    scheduler.set_timesteps(num_steps, **shift_of_size)
    sigmas = scheduler.sigmas.to(torch.float64).tolist()
    return Schedule(steps_of(sigmas), scheduler.timesteps.to(device))


class Schedules:
    """Schedules on a device; each is made once. `tokens`: of an image, as the model sees it."""

    def __init__(
        self, scheduler: Any, config: RolloutConfig, device: torch.device, tokens: int
    ) -> None:
        self._tokens = tokens
        self._scheduler = scheduler
        self._config = config
        self._device = device
        self.of_scheduler = cache(self._of_scheduler)
        self._of_rollout = cache(self._make_rollout)

    def rollout(self, window: Window) -> Schedule:
        """Of a rollout that is stochastic inside `window`."""
        return self._of_rollout(None if self._config.tail is None else window[-1] + 1)

    def deterministic(self) -> Schedule:
        """Of a rollout without stochastic steps."""
        return self._of_rollout(0 if self._config.solver == "dpm_solver" else None)

    @property
    def training_shift(self) -> float:
        """Of the levels that pictures are noised to: what the pipeline's scheduler multiplies the
        odds of a level by, for images of this size."""
        said, mu = self._scheduler.config, self._shift_of_size().get("mu")
        if mu is None:
            return float(self._scheduler.shift)
        return mu if said.get("time_shift_type") == "linear" else math.exp(mu)

    def _of_scheduler(self, num_steps: int) -> Schedule:
        """Of the pipeline's own scheduler: evaluation always, rollouts by default."""
        return schedule_of(self._scheduler, num_steps, self._device, **self._shift_of_size())

    def _shift_of_size(self) -> dict[str, float]:
        """What a scheduler that shifts by an image's size has to be told."""
        said = self._scheduler.config
        if not said.get("use_dynamic_shifting"):
            return {}
        anchors = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
        return {"mu": resolution_mu(self._tokens, *(said[name] for name in anchors))}

    def _make_rollout(self, tail: int | None) -> Schedule:
        config = self._config
        if config.schedule == "scheduler":
            whole, shift = self.of_scheduler(config.num_inference_steps), self.training_shift
            sigmas = [*(step.sigma for step in whole.steps), 0.0]
        else:
            sigmas, shift = self._shifted()
            whole = self._schedule(sigmas)
        if tail is None:
            return whole
        if config.tail is None:
            return Schedule(whole.steps, whole.timesteps, tail)
        return self._schedule(compressed(sigmas, tail - 1, config.tail, shift), tail)

    def _shifted(self) -> tuple[list[float], float]:
        """Levels, and the shift that evenly spaced ones became them by."""
        config = self._config
        if config.schedule == "linear_shift":
            return linear_shift(config.num_inference_steps, config.shift), config.shift
        mu = resolution_mu(self._tokens)
        levels = exponential_shift(config.num_inference_steps, mu, config.lowest_level)
        return levels, math.exp(mu)

    def _schedule(self, sigmas: list[float], tail: int | None = None) -> Schedule:
        timesteps = torch.tensor([1000 * sigma for sigma in sigmas[:-1]], device=self._device)
        return Schedule(steps_of(sigmas), timesteps, tail)


class Solver:
    """Takes the deterministic steps of one rollout: Euler's, or in a tail DPM-Solver++'s."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._before: CleanEstimate | None = None

    def next(self, index: int, x: Tensor, velocity: Tensor) -> Tensor:
        """x behind step `index`. To be called for every step, also those that become stochastic:
        a tail's first step looks back at the last of the window."""
        step, tail = self._schedule.steps[index], self._schedule.tail
        if tail is None:
            return ode(x, velocity, step)
        before = self._before
        self._before = CleanEstimate(step.sigma, x - step.sigma * velocity)
        return ode(x, velocity, step) if index < tail else dpm_solver(x, velocity, step, before)
