"""What a check says, and the limits it says it by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "stop"]
_ORDER: dict[Level, int] = {"ok": 0, "warn": 1, "stop": 2}


@dataclass(frozen=True)
class Verdict:
    """`warn`: a person should look. `stop`: further steps are wasted or do harm."""

    level: Level
    check: str
    reason: str


@dataclass(frozen=True)
class Limits:
    """Where checks warn and stop. Shares and scores are in [0, 1]; windows count steps."""

    window: int = 5
    reward_std_share: float = 0.1  # of the spread at the start: warn below
    reward_std_floor: float = 1e-6  # stop below: every advantage is 0
    zero_std_share_warn: float = 0.5  # groups that teach nothing
    zero_std_share_stop: float = 0.999
    grad_norm_warn: float = 10.0  # times the median of the steps before
    grad_norm_stop: float = 100.0
    clean_rms_warn: float = 0.15  # relative change since the start
    clean_rms_stop: float = 0.5
    proxy_rise: float = 0.02  # a rise of the proxy below this is noise
    gold_fall_warn: float = 0.05
    gold_fall_stop: float = 0.15
    dark_share_warn: float = 0.15  # absolute change since the first evaluation
    dark_share_stop: float = 0.35
    edge_density_warn: float = 0.4  # relative change since the first evaluation
    edge_density_stop: float = 0.6
    color_entropy_warn: float = 1.5  # bits
    color_entropy_stop: float = 3.0


DEFAULT_LIMITS = Limits()


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The gravest verdict, the first of several; ok if there are none."""
    return max(
        verdicts,
        key=lambda verdict: _ORDER[verdict.level],
        default=Verdict("ok", "none", "nothing to check"),
    )


def graded(check: str, value: float, warn: float, stop: float, reason: str) -> Verdict:
    """`stop` above `stop`, `warn` above `warn`, else ok."""
    level: Level = "stop" if value > stop else "warn" if value > warn else "ok"
    return Verdict(level, check, reason)
