"""Shares that are pooled over prompts, with bootstrap intervals: pure functions of arrays.

Every prompt has so many test points, of which so many are shown. A share is the sum of the one by
the sum of the other, so a prompt counts by its points; a score of several parts is the unweighted
mean of their shares. Prompts are drawn anew whole, with all their points: those of one image are
not independent of each other. A part that a resample has no point of is left out of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atelier.evaluation.statistics import LEVEL, Floats, Interval, draws


@dataclass(frozen=True)
class Pool:
    """Test points of prompts.

    Attributes:
        shown: [prompts, parts], how many of them are shown.
        judged: the same shape, how many were judged; each part has some.
    """

    shown: Floats
    judged: Floats

    @property
    def score(self) -> float:
        """The mean over parts of the share of points that are shown, in [0, 1]."""
        return float(_scores(self.shown.sum(axis=0), self.judged.sum(axis=0)))

    @property
    def contributions(self) -> Floats:
        """[prompts]: what each prompt adds to the score, times their number: their mean is it."""
        parts = self.judged.sum(axis=0)
        found: Floats = (self.shown / parts).mean(axis=1) * len(self.shown)
        return found


def pooled_interval(pool: Pool, samples: int = 10_000, seed: int = 0) -> Interval:
    """The score and its interval, `n` being how many prompts there are."""
    if len(pool.shown) == 1:
        return Interval(pool.score, None, None, 1)
    return _interval(pool.score, _resampled(pool, samples, seed), len(pool.shown))


def pooled_difference(before: Pool, after: Pool, samples: int = 10_000, seed: int = 0) -> Interval:
    """The difference of two scores and its interval; row i of both is the same prompt.

    Raises:
        ValueError: they have not the same prompts.
    """
    if len(before.shown) != len(after.shown):
        raise ValueError(
            f"pairs need equal lengths, got {len(before.shown)} and {len(after.shown)}"
        )
    difference = after.score - before.score
    if len(before.shown) == 1:
        return Interval(difference, None, None, 1)
    # The same draws on both sides: the difference is one of equal prompts.
    found = _resampled(after, samples, seed) - _resampled(before, samples, seed)
    return _interval(difference, found, len(before.shown))


def _interval(score: float, resampled: Floats, count: int) -> Interval:
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(score, float(low), float(high), count)


def _resampled(pool: Pool, samples: int, seed: int) -> Floats:
    """Scores [samples] of as many prompts drawn with replacement."""
    count = len(pool.shown)
    found = []
    for drawn in draws(count, samples, np.random.default_rng(seed)):
        places = drawn + count * np.arange(len(drawn))[:, None]
        times = np.bincount(places.ravel(), minlength=count * len(drawn)).reshape(-1, count)
        found.append(_scores(times @ pool.shown, times @ pool.judged))
    return np.concatenate(found)


def _scores(shown: Floats, judged: Floats) -> Floats:
    """The mean over parts [..., parts] of those that have points."""
    there = judged > 0
    shares = np.divide(shown, judged, out=np.zeros_like(shown), where=there)
    scores: Floats = shares.sum(axis=-1) / there.sum(axis=-1)
    return scores
