"""One denoising transition sigma -> sigma_next as a distribution.

Rectified flow: x_sigma = (1 - sigma) x0 + sigma eps, the model predicts v = eps - x0, so
x0_hat = x - sigma v and eps_hat = x + (1 - sigma) v. Every kind below gives the mean and the
standard deviation of x_next; sampling adds std * z, replay asks for the log-probability of the
stored x_next (log_probs.py). The rollout and the replay call the same functions, so their ratio is
1 before the first update. Callers pass float32 tensors; sigmas are Python floats taken from the
stored schedule, never looked up from a timestep.

Source: MM-GRPO (flow_sde, dance_sde, wan_sde, cps), DeepGen-RL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor


@dataclass(frozen=True)
class Step:
    """A step of the schedule. `first_sigma_next` is the schedule's second sigma."""

    sigma: float
    sigma_next: float
    first_sigma_next: float

    @property
    def dt(self) -> float:
        return self.sigma_next - self.sigma


@dataclass(frozen=True)
class Transition:
    """x_next ~ N(mean, std^2). `kl_std`, the s that KLs are divided by, is the std; of flow_sde its
    diffusion g, which is the std without sqrt(h)."""

    mean: Tensor
    std: float
    kl_std: float


def noised(clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
    """x_sigma = (1 - sigma) x0 + sigma eps [B, ...]; level sigma [B] is each sample's own."""
    sigma = level.reshape(-1, *[1] * (clean.dim() - 1)).to(clean.dtype)
    return (1 - sigma) * clean + sigma * noise


def ode(x: Tensor, velocity: Tensor, step: Step) -> Tensor:
    """The deterministic Euler step, x + dt v: same shape as x."""
    return x + step.dt * velocity


def flow_sde(x: Tensor, velocity: Tensor, step: Step, noise_level: float) -> Transition:
    """Flow-GRPO's reverse SDE with diffusion g = a sqrt(sigma / (1 - sigma)).

    At sigma = 1 the divisor takes the schedule's second sigma, so the injected std is exactly a.
    """
    divisor = 1 - (step.first_sigma_next if step.sigma == 1 else step.sigma)
    diffusion = noise_level * math.sqrt(step.sigma / divisor)
    transition = _reverse_sde(x, velocity, step, diffusion)
    return replace(transition, kl_std=diffusion)


def dance_sde(x: Tensor, velocity: Tensor, step: Step, noise_level: float) -> Transition:
    """DanceGRPO's reverse SDE: the same with a constant diffusion g = noise_level (usually 0.3)."""
    return _reverse_sde(x, velocity, step, noise_level)


def wan_sde(x: Tensor, velocity: Tensor, step: Step, noise_level: float = 1.0) -> Transition:
    """Flow-GRPO's form for Wan: g = noise_level sigma_1 sigma; its KL is the full one (3.3)."""
    return _reverse_sde(x, velocity, step, noise_level * step.first_sigma_next * step.sigma)


def _reverse_sde(x: Tensor, velocity: Tensor, step: Step, diffusion: float) -> Transition:
    noise = x + (1 - step.sigma) * velocity
    mean = x + step.dt * (velocity + diffusion**2 / (2 * step.sigma) * noise)
    std = diffusion * math.sqrt(-step.dt)
    return Transition(mean, std, kl_std=std)


def cps(x: Tensor, velocity: Tensor, step: Step, noise_level: float) -> Transition:
    """Coefficients-preserving sampling: std = sigma_next sin(a pi / 2), a in [0, 1].

    a = 0 is the Euler step; a = 1 draws all the noise anew.
    """
    std = step.sigma_next * math.sin(noise_level * math.pi / 2)
    clean = x - step.sigma * velocity
    noise = x + (1 - step.sigma) * velocity
    kept = math.sqrt(max(step.sigma_next**2 - std**2, 0.0))
    return Transition((1 - step.sigma_next) * clean + kept * noise, std=std, kl_std=std)


TRANSITIONS = {"flow_sde": flow_sde, "dance_sde": dance_sde, "wan_sde": wan_sde, "cps": cps}


def sample(transition: Transition, noise: Tensor) -> Tensor:
    """Draw x_next with standard normal `noise` of the shape of x; never differentiated."""
    return (transition.mean + transition.std * noise).detach()


def steps_of(sigmas: Sequence[float]) -> list[Step]:
    """The transitions of a schedule of N + 1 sigmas, 1 first and 0 last."""
    return [Step(a, b, sigmas[1]) for a, b in pairwise(sigmas)]
