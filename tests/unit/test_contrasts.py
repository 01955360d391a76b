"""Intervals hold what they claim, and the figures are those of the formulas."""

import numpy as np
import pytest
from scipy import stats

from atelier.evaluation.contrasts import Groups


def simulated(rng, effects, seeds=3, prompts=128, of_seeds=0.02, of_prompts=0.05, rest=0.2):
    """[groups, seeds, prompts] of the model the module describes."""
    shape = (len(effects), seeds, prompts)
    return (
        np.array(effects)[:, None, None]
        + rng.normal(0, of_seeds, shape[:2])[:, :, None]
        + rng.normal(0, of_prompts, (shape[0], 1, prompts))
        + rng.normal(0, 0.3, (1, 1, prompts))  # how hard a prompt is: the same for all
        + rng.normal(0, rest, shape)
    )


def share_of_misses(effects, paired, times=600, **settings):
    """How often any interval of a simulated comparison misses the true difference."""
    rng = np.random.default_rng(7)
    pairs = [(i, j) for i in range(len(effects)) for j in range(i + 1, len(effects))]
    missed = 0
    for _ in range(times):
        groups = Groups(list(simulated(rng, effects, **settings)), paired)
        found = [(groups.difference(i, j, len(pairs)), effects[j] - effects[i]) for i, j in pairs]
        missed += any(not one.low <= truth <= one.high for one, truth in found)
    return missed / times


# 600 simulations: a true share of 5 % shows as 2.9 to 7.1 % in 99 of 100 cases.
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("of_seeds", [0.0, 0.02, 0.05])
def test_three_groups_of_three_seeds_are_called_different_as_rarely_as_claimed(paired, of_seeds):
    assert share_of_misses([0.5, 0.5, 0.5], paired, of_seeds=of_seeds) < 0.08


@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_intervals_cover_a_true_difference(seeds):
    spread = 0.0 if seeds == 1 else 0.02  # with one seed nothing is claimed about others
    assert share_of_misses([0.5, 0.6], True, seeds=seeds, of_seeds=spread) < 0.09


def test_the_interval_is_not_wider_than_it_has_to_be():
    assert share_of_misses([0.5, 0.5], True, seeds=1, of_seeds=0.0) > 0.025


def test_one_seed_gives_the_paired_t_test():
    one, other = simulated(np.random.default_rng(0), [0.5, 0.55], seeds=1)
    found = Groups([one, other], paired=True).difference(0, 1)
    test = stats.ttest_rel(other[0], one[0])
    interval = test.confidence_interval(0.95)
    assert found.p_value == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_seeds_that_matter_alone_give_the_t_test_of_their_means():
    tables = simulated(np.random.default_rng(0), [0.5, 0.55], of_prompts=0, rest=1e-9, of_seeds=0.1)
    one, other = (table.mean(axis=1) for table in tables)
    paired = Groups(list(tables), paired=True).difference(0, 1)
    assert paired.p_value == pytest.approx(stats.ttest_rel(other, one).pvalue, rel=1e-3)
    unpaired = Groups(list(tables), paired=False).difference(0, 1)
    assert unpaired.p_value == pytest.approx(stats.ttest_ind(other, one).pvalue, rel=1e-3)


def test_more_comparisons_widen_the_interval_and_raise_p():
    groups = Groups(list(simulated(np.random.default_rng(0), [0.5, 0.52])), paired=True)
    one, three = groups.difference(0, 1), groups.difference(0, 1, comparisons=3)
    assert three.high - three.low > one.high - one.low
    assert three.p_value == pytest.approx(min(1, 3 * one.p_value))
    assert one.excludes_zero == (one.p_value < 0.05)


def test_equal_runs_do_not_differ():
    table = simulated(np.random.default_rng(0), [0.5])[0]
    same = Groups([table, table.copy()], paired=True).difference(0, 1)
    assert (same.mean, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_tables_that_do_not_fit_are_refused():
    table = np.zeros((2, 4))
    for tables, paired, words in (
        ([], False, r"\[seeds, prompts\]"),
        ([table, np.zeros((2, 5))], False, "same prompts"),
        ([np.zeros((2, 1))], False, "at least two"),
        ([table, np.zeros((3, 4))], True, "equally many"),
        ([table, np.full((2, 4), np.nan)], False, "finite"),
    ):
        with pytest.raises(ValueError, match=words):
            Groups(tables, paired)
