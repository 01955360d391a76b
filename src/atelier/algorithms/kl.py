"""Distance to the reference policy, per sample and action, in the forms policies can supply.

A policy's replay carries a dictionary of detached or differentiable statistics; a form names what
it needs of it. kl_std [1 or B, A] is the s of a transition (dynamics.transitions).

Source: MM-GRPO, DeepGen-RL; k3 is the usual token estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from atelier.algorithms.ratio import ratio_of

Statistics = Mapping[str, Tensor]

SMALLEST_VARIANCE = 1e-7  # added to 2 s^2, which goes to 0 with the level


def _mean_square(difference: Tensor) -> Tensor:
    """Mean over everything behind batch and action: [B, A, ...] -> [B, A]."""
    return (difference**2).flatten(2).mean(2)


def latent_mean(statistics: Statistics) -> Tensor:
    """mean_dims (mu - mu_ref)^2 / (2 s^2): [B, A]; DeepGen's "x-based", which adds 1e-7 to 2 s^2
    as `scaled_velocity` does: under a thousandth of it at any level that is trained.

    s is the diffusion g for flow_sde (the true KL times the step length h, as the original has it
    on purpose) and the std for the others (the true KL per dimension).
    """
    difference = statistics["mean"] - statistics["reference_mean"]
    return _mean_square(difference) / (2 * statistics["kl_std"] ** 2)


def velocity(statistics: Statistics) -> Tensor:
    """mean_dims (v - v_ref)^2: [B, A]."""
    return _mean_square(statistics["velocity"] - statistics["reference_velocity"])


def scaled_velocity(statistics: Statistics) -> Tensor:
    """mean_dims (v - v_ref)^2 / (2 s^2 + 1e-7): [B, A]; DeepGen's "v-based".

    The step's length, by which a mean moves less than a velocity, is left out: with cps the weight
    grows like 1 / (2 sigma_next^2) towards the end of a rollout.
    """
    return velocity(statistics) / (2 * statistics["kl_std"] ** 2 + SMALLEST_VARIANCE)


def k3(statistics: Statistics) -> Tensor:
    """exp(d) - d - 1 with d = log pi_ref - log pi: [B, A], unbiased and never negative."""
    difference = statistics["reference_log_prob"] - statistics["log_prob"]
    return ratio_of(difference) - difference - 1


KL_FORMS: dict[str, Callable[[Statistics], Tensor]] = {
    "latent_mean": latent_mean,
    "velocity": velocity,
    "scaled_velocity": scaled_velocity,
    "k3": k3,
}
