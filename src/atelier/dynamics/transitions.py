"""One denoising transition sigma -> sigma_next as a distribution, and its log-probability.

Rectified flow: x_sigma = (1 - sigma) x0 + sigma eps, the model predicts v = eps - x0, so
x0_hat = x - sigma v and eps_hat = x + (1 - sigma) v. Every kind below gives the mean and the
standard deviation of x_next; sampling adds std * z, replay asks for the log-probability of the
stored x_next. The rollout and the replay call the same functions, so their ratio is 1 before the
first update. Callers pass float32 tensors; sigmas are Python floats taken from the stored
schedule, never looked up from a timestep.

Source: spec flow 1.1 (flow_sde), 1.2 (cps), 1.3 (log-probabilities).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
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
    """x_next ~ N(mean, std^2). `kl_std` divides the latent-mean KL (spec flow 3.3)."""

    mean: Tensor
    std: float
    kl_std: float


def ode(x: Tensor, velocity: Tensor, step: Step) -> Tensor:
    """The deterministic Euler step, x + dt v: same shape as x."""
    return x + step.dt * velocity


def flow_sde(x: Tensor, velocity: Tensor, step: Step, noise_level: float) -> Transition:
    """Flow-GRPO's reverse SDE with diffusion g = a sqrt(sigma / (1 - sigma)).

    At sigma = 1 the divisor takes the schedule's second sigma, so the injected std is exactly a.
    """
    sigma, h = step.sigma, -step.dt
    divisor = 1 - (step.first_sigma_next if sigma == 1 else sigma)
    diffusion = noise_level * math.sqrt(sigma / divisor)
    noise = x + (1 - sigma) * velocity
    mean = x + step.dt * (velocity + diffusion**2 / (2 * sigma) * noise)
    return Transition(mean, std=diffusion * math.sqrt(h), kl_std=diffusion)


def cps(x: Tensor, velocity: Tensor, step: Step, noise_level: float) -> Transition:
    """Coefficients-preserving sampling: std = sigma_next sin(a pi / 2), a in [0, 1].

    a = 0 is the Euler step; a = 1 draws all the noise anew.
    """
    std = step.sigma_next * math.sin(noise_level * math.pi / 2)
    clean = x - step.sigma * velocity
    noise = x + (1 - step.sigma) * velocity
    kept = math.sqrt(max(step.sigma_next**2 - std**2, 0.0))
    return Transition((1 - step.sigma_next) * clean + kept * noise, std=std, kl_std=std)


def gaussian_mean(x_next: Tensor, transition: Transition) -> Tensor:
    """Gaussian log-density averaged, not summed, over all but the first dimension: [B].

    A ratio of it is the (1/D)-th power of the joint ratio; a clip range of 1e-4 at D = 65 536
    is 6.6 nats of the joint log-ratio (spec flow 1.3).
    """
    z = (x_next - transition.mean) / transition.std
    density = -0.5 * z**2 - math.log(transition.std) - 0.5 * math.log(2 * math.pi)
    return density.flatten(1).mean(1)


def cps_raw(x_next: Tensor, transition: Transition) -> Tensor:
    """-(x_next - mean)^2 averaged over all but the first dimension: [B].

    Not a density: the constants and 1/(2 std^2) are dropped on purpose, because the proper
    factor diverges as std goes to 0 and would make clip ranges incomparable between steps.
    """
    return -((x_next - transition.mean) ** 2).flatten(1).mean(1)


@dataclass(frozen=True)
class Dynamics:
    """A kind of transition with the log-probability it is trained with."""

    transition: Callable[[Tensor, Tensor, Step, float], Transition]
    log_prob: Callable[[Tensor, Transition], Tensor]


DYNAMICS = {
    "flow_sde": Dynamics(flow_sde, gaussian_mean),
    "cps": Dynamics(cps, cps_raw),
}


def sample(transition: Transition, noise: Tensor) -> Tensor:
    """Draw x_next with standard normal `noise` of the shape of x; never differentiated."""
    return (transition.mean + transition.std * noise).detach()


def steps_of(sigmas: Tensor) -> list[Step]:
    """The transitions of a schedule of N + 1 sigmas, 1 first and 0 last."""
    values = [float(sigma) for sigma in sigmas.to(torch.float64)]
    return [Step(a, b, values[1]) for a, b in pairwise(values)]
