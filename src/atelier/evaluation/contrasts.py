"""How much groups of runs differ on the same prompts, when some or all have several seeds.

The score of seed s of group g on prompt p is taken as

    mean[g] + seed[g, s] + prompt[g, p] + rest[g, s, p]

with random seeds and random prompts, so an interval says what to expect of *other* seeds and
prompts. With D the difference of two groups, averaged over seeds, prompt by prompt:

    variance of its mean = (variance of D over prompts + share * (seeds - rest)) / prompts

where `seeds` and `rest` are the mean squares of an analysis of variance, pooled over all groups,
and share is 1/S of one group + 1/S of the other. The quantile is Student's, with Satterthwaite's
(1946) degrees of freedom. One seed a group leaves the first term: then nothing is said about other
seeds.

Not a bootstrap over seeds and prompts: resampling three seeds cannot show how far seeds lie apart.
Simulated with 256 prompts and seeds that matter much, its 95 % interval misses the truth in 18 % of
all cases with three seeds and in 27 % with two; this one in 6 % and 12 %, and in 3 to 6 % with five
or where seeds matter little (benchmarks/interval_coverage.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atelier.evaluation.statistics import LEVEL, Bounded, Floats


@dataclass(frozen=True)
class Estimate(Bounded):
    """A mean, its interval, and the chance of one as far from 0 if the truth were 0.

    The interval and `p_value` are corrected for the number of comparisons (Bonferroni), so that
    all intervals of a family hold at once with probability `LEVEL`.
    """

    mean: float
    low: float
    high: float
    p_value: float
    degrees_of_freedom: float
    prompts: int


@dataclass(frozen=True)
class SeedNoise:
    """Mean squares between seeds and of the rest, and their `degrees` of freedom (of the first)."""

    seeds: float
    rest: float
    degrees: int


class Groups:
    """Scores of groups of runs on shared prompts.

    Args:
        tables: one [seeds, prompts] a group, finite, all with the same prompts in the same order.
        paired: row s of every table is the same seed, so that what a seed does to all groups
            cancels. Needs equally many rows.

    Raises:
        ValueError: no group, fewer than two prompts, shapes that do not fit, values not finite.
    """

    def __init__(self, tables: Sequence[Floats], paired: bool) -> None:
        if not tables or any(table.ndim != 2 or len(table) == 0 for table in tables):
            raise ValueError("every group needs scores [seeds, prompts]")
        if len({table.shape[1] for table in tables}) > 1 or tables[0].shape[1] < 2:
            raise ValueError("groups need the same prompts, at least two of them")
        if paired and len({len(table) for table in tables}) > 1:
            raise ValueError("paired seeds need equally many runs a group")
        if not all(np.isfinite(table).all() for table in tables):
            raise ValueError("scores must be finite: leave missing ones out first")
        self._tables = tables
        self._within = _noise_within(tables)
        self._between = _noise_paired(np.stack(tables)) if paired else self._within

    def mean(self, group: int, comparisons: int = 1) -> Estimate:
        """The mean of one group."""
        table = self._tables[group]
        return _estimate(table.mean(axis=0), 1 / len(table), self._within, comparisons)

    def difference(self, first: int, second: int, comparisons: int = 1) -> Estimate:
        """The mean of the second group less that of the first, one of `comparisons` looked at."""
        one, other = self._tables[first], self._tables[second]
        by_prompt = other.mean(axis=0) - one.mean(axis=0)
        share = 1 / len(one) + 1 / len(other)
        return _estimate(by_prompt, share, self._between, comparisons)


def _noise_within(tables: Sequence[Floats]) -> SeedNoise:
    """Seeds around their group's mean; the rest is what neither seed nor prompt explains."""
    prompts = tables[0].shape[1]
    degrees = sum(len(table) - 1 for table in tables)
    if degrees == 0:
        return SeedNoise(0.0, 0.0, 0)
    seeds = rest = 0.0
    for table in tables:
        by_seed = table.mean(axis=1, keepdims=True) - table.mean()
        seeds += prompts * float((by_seed**2).sum())
        rest += float(((table - table.mean(axis=0) - by_seed) ** 2).sum())
    return SeedNoise(seeds / degrees, rest / (degrees * (prompts - 1)), degrees)


def _noise_paired(scores: Floats) -> SeedNoise:
    """The same for [groups, seeds, prompts], less what a seed does to all groups alike."""
    groups, seeds, prompts = scores.shape
    degrees = (groups - 1) * (seeds - 1)
    if degrees == 0:
        return SeedNoise(0.0, 0.0, 0)
    centred = scores - scores.mean(axis=0)
    by_seed = centred.mean(axis=2, keepdims=True) - centred.mean(axis=(1, 2), keepdims=True)
    rest = centred - centred.mean(axis=1, keepdims=True) - by_seed
    return SeedNoise(
        prompts * float((by_seed**2).sum()) / degrees,
        float((rest**2).sum()) / (degrees * (prompts - 1)),
        degrees,
    )


def _estimate(by_prompt: Floats, share: float, noise: SeedNoise, comparisons: int) -> Estimate:
    from scipy.special import stdtr, stdtrit

    prompts = len(by_prompt)
    mean, variance = float(by_prompt.mean()), float(by_prompt.var(ddof=1))
    freedom = float(prompts - 1)
    if noise.seeds > noise.rest:
        seeds, rest = share * noise.seeds, share * noise.rest
        total = variance + seeds - rest
        uncertain = (
            variance**2 / freedom
            + seeds**2 / noise.degrees
            + rest**2 / (noise.degrees * (prompts - 1))
        )
        variance, freedom = total, total**2 / uncertain
    error = float(np.sqrt(variance / prompts))
    if error == 0.0:
        return Estimate(mean, mean, mean, 0.0 if mean else 1.0, freedom, prompts)
    half = error * float(stdtrit(freedom, 1 - (1 - LEVEL) / 2 / comparisons))
    chance = 2 * float(stdtr(freedom, -abs(mean) / error))
    return Estimate(
        mean, mean - half, mean + half, min(1.0, chance * comparisons), freedom, prompts
    )
