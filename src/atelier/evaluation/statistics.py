"""Means with bootstrap intervals, paired differences, and best-of-N: pure functions of arrays.

Everything is seeded, so that the same scores give the same interval on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
_INDICES_AT_ONCE = 4_000_000  # 32 MB of resampled indices

Floats = NDArray[np.float64]


class Bounded:
    """An estimate with an interval; no bounds (None) where one value says nothing of the others."""

    low: float | None
    high: float | None

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return self.low is not None and self.high is not None

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Interval(Bounded):
    """A mean of n values and its percentile-bootstrap interval at level `LEVEL`, None of one."""

    mean: float
    low: float | None
    high: float | None
    n: int


def mean_interval(
    values: ArrayLike, samples: int = 10_000, seed: int = 0, strata: Sequence[Any] | None = None
) -> Interval:
    """The mean of values [n] and its interval.

    Args:
        strata: [n], the stratum of each value. The mean is then the unweighted one of the strata's
            means (macro), and values are drawn anew within their stratum, since how many there are
            of each is no chance. A stratum of one value has no spread to draw from: then all are
            drawn together, each with its weight in the macro mean, which makes intervals wider.

    Raises:
        ValueError: no values, or one that is not finite: leave missing scores out first.
    """
    array = _finite_vector(values)
    mean = mean_of(array, strata)
    if len(array) == 1:
        return Interval(mean, None, None, 1)
    rng = np.random.default_rng(seed)
    parts = [array[places] for places in _places(strata, len(array))]
    if strata is not None and min(map(len, parts)) == 1:
        means = _resampled_means(array, samples, rng, macro_weights(strata))
    else:
        means = np.mean([_resampled_means(part, samples, rng) for part in parts], axis=0)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(low), float(high), len(array))


def mean_of(values: ArrayLike, strata: Sequence[Any] | None = None) -> float:
    """The mean of values [n], as `mean_interval` takes it.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    array = _finite_vector(values)
    return float(np.mean([array[places].mean() for places in _places(strata, len(array))]))


def macro_weights(strata: Sequence[Any]) -> Floats:
    """Weights [n], of mean 1, with which the plain mean of values is the macro mean."""
    weights = np.empty(len(strata))
    parts = _places(strata, len(strata))
    for places in parts:
        weights[places] = len(strata) / (len(parts) * len(places))
    return weights


def paired_difference(
    before: ArrayLike,
    after: ArrayLike,
    samples: int = 10_000,
    seed: int = 0,
    strata: Sequence[Any] | None = None,
) -> Interval:
    """The mean of after - before and its interval; entry i of both is the same prompt and noise.

    Raises:
        ValueError: different lengths, no values, or one that is not finite.
    """
    first, second = _finite_vector(before), _finite_vector(after)
    if len(first) != len(second):
        raise ValueError(f"pairs need equal lengths, got {len(first)} and {len(second)}")
    return mean_interval(second - first, samples, seed, strata)


def best_of_n(scores: ArrayLike, n: int, by: ArrayLike | None = None) -> float:
    """Expected score of the best of n images, averaged over prompts.

    What n images a prompt give without any training. Exact over all subsets of the K images that
    were drawn, so it needs no resampling; n = 1 is the plain mean.

    Args:
        scores: [prompts, K].
        n: 1..K.
        by: [prompts, K], what the best is chosen by, if not the scores themselves (choose by the
            proxy, report gold); images tied for the best share their chance.

    Raises:
        ValueError: n outside 1..K, shapes that differ, or a value that is not finite.
    """
    table = np.asarray(scores, dtype=np.float64)
    chosen_by = table if by is None else np.asarray(by, dtype=np.float64)
    if table.ndim != 2 or table.size == 0 or table.shape != chosen_by.shape:
        raise ValueError(f"best_of_n needs [prompts, K], got {table.shape}, {chosen_by.shape}")
    if not (np.isfinite(table).all() and np.isfinite(chosen_by).all()):
        raise ValueError("best_of_n needs finite scores: leave prompts with missing ones out")
    count = table.shape[1]
    if not 1 <= n <= count:
        raise ValueError(f"best_of_n: n is {n}, but there are {count} images a prompt")
    # At rank r (0 the worst) an image is the best of n iff the other n-1 come from the r below it.
    chance = np.array([comb(rank, n - 1) / comb(count, n) for rank in range(count)])
    return float(np.mean([_expected(*row, chance) for row in zip(table, chosen_by, strict=True)]))


def _expected(scores: Floats, chosen_by: Floats, chance: Floats) -> float:
    """Expected score of one prompt: ranks by `chosen_by`, tied ranks share their chance."""
    _, ties, counts = np.unique(chosen_by, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    shares = np.array(
        [chance[end - size : end].mean() for end, size in zip(ends, counts, strict=True)]
    )
    return float(scores @ shares[ties])


def _places(strata: Sequence[Any] | None, count: int) -> list[NDArray[np.int64]]:
    """The places of each stratum's values, strata in the order in which they come first."""
    if strata is None:
        return [np.arange(count)]
    found: dict[Any, list[int]] = {}
    for place, stratum in enumerate(strata):
        found.setdefault(stratum, []).append(place)
    return [np.array(places) for places in found.values()]


def _resampled_means(
    values: Floats, samples: int, rng: np.random.Generator, weights: Floats | None = None
) -> Floats:
    """Means [samples] of as many values drawn with replacement, weighted if there are weights."""
    if weights is None:
        blocks = [values[drawn].mean(axis=1) for drawn in draws(len(values), samples, rng)]
    else:
        blocks = [
            (values * weights)[drawn].sum(axis=1) / weights[drawn].sum(axis=1)
            for drawn in draws(len(values), samples, rng)
        ]
    return np.concatenate(blocks)


def draws(count: int, samples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Blocks [k, count] of places drawn with replacement, `samples` rows in all."""
    at_once = max(1, _INDICES_AT_ONCE // count)
    for start in range(0, samples, at_once):
        rows = min(at_once, samples - start)
        yield rng.integers(0, count, size=(rows, count))


def _finite_vector(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"a mean needs at least one value in one dimension, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("a mean needs finite values: leave missing scores out")
    return array
