"""Deterministic multistep solving, for steps that are not trained. Pure.

Source: MM-GRPO (MixGRPO-Flash's tail): DPM-Solver++ 2M, midpoint form, data prediction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from atelier.dynamics.transitions import Step


@dataclass(frozen=True)
class CleanEstimate:
    """x0_hat = x - sigma v at an earlier level."""

    sigma: float
    clean: Tensor


def dpm_solver(x: Tensor, velocity: Tensor, step: Step, before: CleanEstimate | None) -> Tensor:
    """x at step.sigma_next, second order where an earlier estimate is known.

    First order without one, on the last step (which returns x0_hat), and where the earlier level
    is 1: there log-SNR is infinite and the correction vanishes.
    """
    clean = x - step.sigma * velocity
    if step.sigma_next == 0:
        return clean
    length = _log_snr(step.sigma_next) - _log_snr(step.sigma)
    change = (1 - step.sigma_next) * math.expm1(-length)
    direction = clean
    if before is not None and before.sigma < 1:
        earlier = _log_snr(step.sigma) - _log_snr(before.sigma)
        direction = clean + 0.5 * length / earlier * (clean - before.clean)
    return step.sigma_next / step.sigma * x - change * direction


def _log_snr(sigma: float) -> float:
    """ln((1 - sigma) / sigma), minus infinity at 1."""
    return math.log((1 - sigma) / sigma) if sigma < 1 else -math.inf
