"""How likely a stored transition is under a policy, in the three forms people train with. Pure.

All are averages over the latent's elements, not sums: a ratio of the Gaussian one is the (1/D)-th
power of the joint ratio, so a clip range of 1e-4 at D = 65 536 is 6.6 nats of the joint log-ratio.
Only differences at the same transition matter: what old and new policy share may be left out.

Source: MM-GRPO (gaussian_mean, cps_raw, ratio_norm).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from atelier.dynamics.transitions import Transition


def gaussian_mean(x_next: Tensor, transition: Transition, noise: Tensor) -> Tensor:
    """The Gaussian log-density of x_next: [B]."""
    z = (x_next - transition.mean) / transition.std
    density = -0.5 * z**2 - math.log(transition.std) - 0.5 * math.log(2 * math.pi)
    return density.flatten(1).mean(1)


def cps_raw(x_next: Tensor, transition: Transition, noise: Tensor) -> Tensor:
    """-(x_next - mean)^2: [B].

    Not a density: the constants and 1/(2 std^2) are dropped on purpose, because the proper
    factor diverges as std goes to 0 and would make clip ranges incomparable between steps.
    """
    return -((x_next - transition.mean) ** 2).flatten(1).mean(1)


def ratio_norm(x_next: Tensor, transition: Transition, noise: Tensor) -> Tensor:
    """noise * mean, the noise being what the behaviour policy drew: [B].

    GRPO-Guard's log-ratio (log p - log p_old + |mu - mu_old|^2 / 2 std^2) std is the mean of
    z (mu - mu_old) with x_next = mu_old + std z. Written so it has expectation 0 and no 1/std.
    """
    return (noise * transition.mean).flatten(1).mean(1)


@dataclass(frozen=True)
class LogProb:
    """A form of the log-probability.

    Attributes:
        by_length: whether losses are divided by the step's length h, which makes the velocity's
            gradient weigh the same at every step.
    """

    function: Callable[[Tensor, Transition, Tensor], Tensor]
    by_length: bool = False


LOG_PROBS = {
    "gaussian_mean": LogProb(gaussian_mean),
    "cps_raw": LogProb(cps_raw),
    "ratio_norm": LogProb(ratio_norm, by_length=True),
}
