"""Checks of held-out evaluations over time: is the reward earned, or hacked?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atelier.monitoring.verdict import DEFAULT_LIMITS, Limits, Verdict, graded

# Means of one evaluation: `summary["metrics"]` of an evaluation, {name: {"mean": ...}}.
Metrics = Mapping[str, Mapping[str, Any]]


def check_evaluations(
    history: Sequence[Metrics], limits: Limits = DEFAULT_LIMITS, proxy: str = "similarity"
) -> list[Verdict]:
    """All checks of a run's evaluations, the baseline first; a check without data is ok."""
    return [
        proxy_against_gold(history, limits, proxy),
        image_drift(history, "dark_share", limits.dark_share_warn, limits.dark_share_stop),
        image_drift(
            history, "edge_density", limits.edge_density_warn, limits.edge_density_stop, True
        ),
        image_drift(history, "color_entropy", limits.color_entropy_warn, limits.color_entropy_stop),
    ]


def proxy_against_gold(
    history: Sequence[Metrics], limits: Limits = DEFAULT_LIMITS, proxy: str = "similarity"
) -> Verdict:
    """The trained-on metric rises while the exact one falls from its best."""
    check = "proxy_against_gold"
    pairs = [(_mean(one, proxy), _mean(one, "gold")) for one in history]
    known = [(p, g) for p, g in pairs if p is not None and g is not None]
    if len(known) < 2:
        return Verdict("ok", check, "fewer than two evaluations with a gold score")
    best_proxy, best_gold = max(known, key=lambda pair: pair[1])
    rise, fall = known[-1][0] - best_proxy, best_gold - known[-1][1]
    reason = f"since gold was best, {proxy} changed by {rise:+.3f} and gold by {-fall:+.3f}"
    if rise < limits.proxy_rise:
        return Verdict("ok", check, reason)
    return graded(check, fall, limits.gold_fall_warn, limits.gold_fall_stop, reason)


def image_drift(
    history: Sequence[Metrics], name: str, warn: float, stop: float, relative: bool = False
) -> Verdict:
    """How far an image statistic has moved from the first evaluation.

    A large change stops the run only where gold has not risen with it: sharper letters move the
    edge density too.
    """
    check = f"image_drift/{name}"
    values = [value for one in history if (value := _mean(one, name)) is not None]
    if len(values) < 2:
        return Verdict("ok", check, "fewer than two evaluations")
    change = values[-1] - values[0]
    size = abs(change) / max(abs(values[0]), 1e-6) if relative else abs(change)
    golds = [gold for one in history if (gold := _mean(one, "gold")) is not None]
    earned = len(golds) > 1 and golds[-1] > golds[0]
    reason = f"{name} went from {values[0]:.3f} to {values[-1]:.3f}: look at the image grid"
    return graded(check, size, warn, float("inf") if earned else stop, reason)


def _mean(metrics: Metrics, name: str) -> float | None:
    found = metrics.get(name)
    return None if found is None else float(found["mean"])
