"""What holds for scores wherever they were made: finite, as many as images, golden samples met.

Finite as float32, which is what they are kept as: 1e39 would be infinite there, and one infinite
score makes the mean, hence the advantage, of a whole group NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any

import numpy as np

from atelier.errors import AtelierError, ConfigError, Stopped
from atelier.legible import legible, legible_value
from atelier.rewards.base import Missing, Score, Scores

LARGEST = float(np.finfo(np.float32).max)


class Malformed(ValueError):
    """What a scorer returned is not one score an image."""


def checked(scores: Any, count: int) -> Scores:
    """Scores as floats that float32 holds, or Missing: NaN and infinity are not scores. What was
    seen becomes one mapping an image.

    Call it where the scorer runs: values may compute, hang or raise when they are looked at.

    Raises:
        Malformed: these are no scores, or not as many as images.
    """
    if not isinstance(scores, Scores):
        raise Malformed(f"the scorer returned {type(scores).__name__} and no Scores")
    values = [_finite(score) for score in listed(scores.values, count)]
    given = scores.details
    if given is None or (isinstance(given, Sized) and not len(given)):
        return Scores(scores.name, values)
    return Scores(scores.name, values, [_mapping(one) for one in listed(given, count, "details")])


def listed(given: Any, count: int, what: str = "scores") -> list[Any]:
    """The entries of a sequence, or of a generator, which may be endless.

    Raises:
        Malformed: it is none, or has not one entry an image.
    """
    kind = type(given).__name__
    # Their entries are characters and keys, and the order of a set is nobody's.
    if isinstance(given, str | bytes | Mapping | AbstractSet):
        raise Malformed(f"the scorer returned {kind} as {what}")
    try:
        entries = iter(given)
    except TypeError as error:
        raise Malformed(f"the scorer returned {kind} as {what}") from error
    found = list(islice(entries, count + 1))
    if len(found) != count:
        number = len(given) if isinstance(given, Sized) else len(found)
        raise Malformed(f"the scorer returned {number} {what} for {count} images")
    return found


def may_be_had_later(error: BaseException) -> bool:
    """Whether a scorer that raised this may score when it is asked again: what we raise ourselves
    is the configuration's fault, or for a person to decide; what is malformed stays so."""
    return not isinstance(error, AtelierError | Malformed)


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


def _mapping(seen: Any) -> Mapping[str, Any]:
    """What was seen of an image; a function may give a text or nothing, too."""
    if isinstance(seen, Mapping):
        return seen
    return {} if seen is None else {"seen": seen}


def _finite(score: Any) -> Score:
    if isinstance(score, Missing):
        reason = score.reason if isinstance(score.reason, str) else legible_value(score.reason)
        return Missing(legible(reason), bool(score.retryable))
    try:
        value = float(score)
    except Exception:  # __float__ is anybody's code; and 10**400 is no float
        return Missing(f"the scorer returned {legible_value(score)}")
    if math.isfinite(value) and abs(value) > LARGEST:
        return Missing(f"the scorer returned {value}, more than float32 holds")
    return value if math.isfinite(value) else Missing(f"the scorer returned {value}")
