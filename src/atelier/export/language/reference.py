"""How likely tokens are, as something that an export must reproduce.

    log_probs       float32 [N, T]  of tokens that the trained policy drew, teacher-forced, by the
                                    same weights
    base_log_probs  float32 [N, T]  the same by the policy before training
    greedy          int64 [N, T]    the likeliest tokens one after another, by the trained weights

Where rows are not equally long, log-probs are 0 and tokens are padding behind their ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from atelier.export.reference import Difference, Differences, Reference, require_same_shape

TIE = 1e-3  # logits that are closer may come in either order


@dataclass(frozen=True)
class TokenReference(Reference):
    """See the module."""

    log_probs: np.ndarray
    base_log_probs: np.ndarray
    greedy: np.ndarray

    @property
    def effect(self) -> Differences:
        """Also of the log-probs of what the policy draws now."""
        return replace(super().effect, log_probs=_absolute(self.log_probs, self.base_log_probs))

    def compare(self, made: Mapping[str, np.ndarray]) -> Differences:
        return replace(
            super().compare(made),
            log_probs=_absolute(made["log_probs"], self.log_probs),
            greedy=greedy_equal(made["greedy"], self.greedy, made["margins"]),
        )


def greedy_equal(made: np.ndarray, expected: np.ndarray, margins: np.ndarray) -> float:
    """Share of greedy tokens [N, T] that are the same, up to the first one of a row that is not.

    Where that one was a tie, what comes after it proves nothing, and the row counts as equal.

    Args:
        margins: [N, T] how far the likeliest token was before the second one, in logits.
    """
    require_same_shape("greedy tokens", made, expected)
    equal = 0
    for row, other, margin in zip(made, expected, margins, strict=True):
        places = np.flatnonzero(row != other)
        lost = len(places) > 0 and not margin[places[0]] <= TIE
        equal += int(places[0]) if lost else len(row)
    return equal / expected.size


def _absolute(left: np.ndarray, right: np.ndarray) -> Difference:
    require_same_shape("log-probs", left, right)
    difference = np.abs(left.astype(np.float64) - right.astype(np.float64))
    return Difference(float(difference.max()), float(difference.mean()))
