"""What a rollout's log-probability is where the configuration names none, and its clip range."""

from __future__ import annotations

from atelier.config.schema import RunConfig
from atelier.config.sections.rollout import RolloutConfig

# CPS has no other: its Gaussian diverges as std goes to 0, and ratio_norm assumes the Gaussian.
USUAL_LOG_PROBS = {
    "flow_sde": "gaussian_mean",
    "dance_sde": "gaussian_mean",
    "wan_sde": "gaussian_mean",
    "cps": "cps_raw",
}
# MM-GRPO's.
USUAL_CLIP_RANGES = {"gaussian_mean": 1e-4, "cps_raw": 1e-5, "ratio_norm": 2e-6}
TOKEN_CLIP_RANGE = 0.2  # FocusDiff's and Janus-Pro-R1's
SEQUENCE_CLIP_RANGE = 3e-4  # GSPO, arXiv 2507.18071


def log_prob_name(rollout: RolloutConfig) -> str:
    """Key of dynamics.log_probs.LOG_PROBS; a rollout without stochastic steps has none."""
    return rollout.log_prob or USUAL_LOG_PROBS[rollout.dynamics]


def clip_ranges(config: RunConfig) -> tuple[float, float]:
    """How far the ratio may be below and above 1."""
    low, high = config.algorithm.clip_range, config.algorithm.clip_range_high
    low = usual_clip_range(config) if low is None else low
    return low, low if high is None else high


def usual_clip_range(config: RunConfig) -> float:
    """Where the configuration names none."""
    if config.policy.denoises:
        return USUAL_CLIP_RANGES[log_prob_name(config.rollout)]
    is_token = config.algorithm.ratio_level == "token"
    return TOKEN_CLIP_RANGE if is_token else SEQUENCE_CLIP_RANGE
