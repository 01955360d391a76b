"""Checks of the lines of metrics.jsonl: does the run still learn, and is it stable?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from atelier.monitoring.verdict import DEFAULT_LIMITS, Limits, Verdict, graded

Record = Mapping[str, Any]


def check_training(records: Sequence[Record], limits: Limits = DEFAULT_LIMITS) -> list[Verdict]:
    """All checks of a run's metrics so far, oldest first; a check without data is ok."""
    return [
        finite(records),
        reward_spread(records, limits),
        zero_variance_groups(records, limits),
        gradient_norm(records, limits),
        clean_latents(records, limits),
    ]


def finite(records: Sequence[Record]) -> Verdict:
    """The last step has no NaN or infinity (metrics.jsonl holds them as strings)."""
    check = "finite"
    odd = [name for name, value in records[-1].items() if not _is_finite(value)] if records else []
    if odd:
        step = records[-1].get("step")
        return Verdict("stop", check, f"step {step}: not finite: {', '.join(sorted(odd))}")
    return Verdict("ok", check, "all metrics are finite")


def reward_spread(records: Sequence[Record], limits: Limits = DEFAULT_LIMITS) -> Verdict:
    """The spread of rewards now against the start: without spread there is no advantage."""
    check, values = "reward_spread", _series(records, "reward/std")
    if len(values) < 2 * limits.window:
        return Verdict("ok", check, "too few steps to compare")
    start, now = fmean(values[: limits.window]), fmean(values[-limits.window :])
    reason = (
        f"reward std is {now:.3g}, at the start it was {start:.3g} (means of {limits.window} "
        "steps): either the policy has converged, or its images have become alike"
    )
    if now < limits.reward_std_floor:
        return Verdict("stop", check, reason)
    return Verdict("warn" if now < limits.reward_std_share * start else "ok", check, reason)


def zero_variance_groups(records: Sequence[Record], limits: Limits = DEFAULT_LIMITS) -> Verdict:
    """The share of groups whose rewards are all equal, mean of the last steps."""
    check, values = "zero_variance_groups", _series(records, "advantage/zero_std_share")
    if len(values) < limits.window:
        return Verdict("ok", check, "too few steps")
    share = fmean(values[-limits.window :])
    return graded(
        check,
        share,
        limits.zero_std_share_warn,
        limits.zero_std_share_stop,
        f"{share:.0%} of the groups have one reward for all images and teach nothing: "
        "prompts are too easy or too hard, or images are too alike (rollout.noise_level)",
    )


def gradient_norm(records: Sequence[Record], limits: Limits = DEFAULT_LIMITS) -> Verdict:
    """The last gradient norm against the median before it."""
    check, values = "gradient_norm", _series(records, "grad_norm")
    if len(values) <= limits.window:
        return Verdict("ok", check, "too few steps to compare")
    usual = median(values[:-1])
    ratio = values[-1] / usual if usual > 0 else 0.0
    return graded(
        check,
        ratio,
        limits.grad_norm_warn,
        limits.grad_norm_stop,
        f"gradient norm {values[-1]:.3g} is {ratio:.1f} times its median {usual:.3g}: "
        "lower train.learning_rate or train.max_grad_norm if it comes again",
    )


def clean_latents(records: Sequence[Record], limits: Limits = DEFAULT_LIMITS) -> Verdict:
    """The size of finished latents against the start: DiffusionNFT's brightness can run
    away. Other algorithms do not say it."""
    check, values = "clean_latents", _series(records, "nft/clean_rms")
    if len(values) < 2 * limits.window:
        return Verdict("ok", check, "too few steps to compare")
    start, now = fmean(values[: limits.window]), fmean(values[-limits.window :])
    return graded(
        check,
        abs(now / start - 1) if start > 0 else 0.0,
        limits.clean_rms_warn,
        limits.clean_rms_stop,
        f"finished latents have a root mean square of {now:.3g}, at the start it was {start:.3g} "
        f"(means of {limits.window} steps): brightness or contrast runs away; raise "
        "algorithm.beta or algorithm.nft.strength, or lower train.learning_rate",
    )


def _series(records: Sequence[Record], name: str) -> list[float]:
    """The finite values of a metric; `finite` reports the others."""
    return [float(r[name]) for r in records if name in r and _is_finite(r[name])]


def _is_finite(value: Any) -> bool:
    if isinstance(value, str):
        return value not in ("nan", "inf", "-inf")
    return not isinstance(value, float) or math.isfinite(value)
