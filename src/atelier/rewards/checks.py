"""What holds for scores wherever they were made: finite, as many as images, golden samples met.

Finite as float32, which is what they are kept as: 1e39 would be infinite there, and one infinite
score makes the mean, hence the advantage, of a whole group NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from atelier.errors import ConfigError, Stopped
from atelier.rewards.base import Missing, Score, Scores

LARGEST = float(np.finfo(np.float32).max)


def checked(scores: Scores, count: int) -> Scores:
    """Scores as floats that float32 holds, or Missing: NaN and infinity are not scores.

    Raises:
        ValueError: there are not as many as images.
    """
    if len(scores.values) != count or len(scores.details) not in (0, count):
        raise ValueError(f"the scorer returned {len(scores.values)} scores for {count} images")
    return Scores(scores.name, [_finite(score) for score in scores.values], scores.details)


def require_golden(
    name: str, scores: Sequence[Score], expected: Sequence[float], tolerance: float
) -> None:
    """The scores of a golden sample are what they must be.

    Raises:
        Stopped: one is missing.
        ConfigError: one is outside the tolerance.
    """
    for index, (score, wanted) in enumerate(zip(scores, expected, strict=True)):
        if isinstance(score, Missing):
            raise Stopped(
                f"rewards.{name}: no score for golden sample {index}: {score.reason}. "
                "Resume once the scorer answers."
            )
        if abs(score - wanted) > tolerance:
            raise ConfigError(
                f"rewards.{name}: golden sample {index} scored {score:.6g} instead of {wanted:.6g} "
                f"(+-{tolerance:g}). The scorer is not what the configuration describes: compare "
                "its version and its model files."
            )


def _finite(score: Score) -> Score:
    if isinstance(score, Missing):
        return score
    try:
        value = float(score)
    except (TypeError, ValueError):
        return Missing(f"the scorer returned {score!r}")
    if math.isfinite(value) and abs(value) > LARGEST:
        return Missing(f"the scorer returned {value}, more than float32 holds")
    return value if math.isfinite(value) else Missing(f"the scorer returned {value}")
