"""Intervals, paired differences and best-of-N against closed forms and brute force."""

from itertools import combinations

import numpy as np
import pytest

from atelier.evaluation.statistics import best_of_n, mean_interval, paired_difference


def test_the_interval_has_the_normal_width_and_is_deterministic():
    values = np.random.default_rng(3).normal(2.0, 1.5, 400)
    found = mean_interval(values)
    half = 1.96 * values.std() / 20
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)
    assert found == mean_interval(values)
    assert found != mean_interval(values, seed=1)
    assert found.n == 400


def test_blocks_of_resamples_do_not_change_the_size(monkeypatch):
    from atelier.evaluation import statistics

    whole = mean_interval(np.arange(10.0), samples=1000)
    monkeypatch.setattr(statistics, "_INDICES_AT_ONCE", 70)
    assert mean_interval(np.arange(10.0), samples=1000) == whole


def test_pairing_removes_what_prompts_share():
    rng = np.random.default_rng(0)
    prompt = rng.normal(0, 10, 200)
    before, after = prompt + rng.normal(0, 0.1, 200), prompt + 0.5 + rng.normal(0, 0.1, 200)
    found = paired_difference(before, after)
    assert found.excludes_zero
    assert 0.45 < found.low < 0.5 < found.high < 0.55
    assert not paired_difference(before, before).excludes_zero


def test_one_value_and_bad_values():
    one = mean_interval([0.5])
    assert (one.mean, one.low, one.high, one.n) == (0.5, None, None, 1)
    assert not one.is_known
    assert not one.excludes_zero
    for bad in ([], [float("nan"), 1.0], [[1.0]]):
        with pytest.raises(ValueError, match="value"):
            mean_interval(bad)
    with pytest.raises(ValueError, match="equal lengths"):
        paired_difference([1.0], [1.0, 2.0])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_best_of_n_equals_brute_force(n):
    scores = np.random.default_rng(1).random((4, 5))
    expected = np.mean([[max(c) for c in combinations(row, n)] for row in scores])
    assert best_of_n(scores, n) == pytest.approx(expected)


def test_best_by_a_proxy_with_ties_shares_the_chance():
    gold = [[1.0, 0.0, 0.0, 1.0]]
    proxy = [[0.5, 0.5, 0.1, 0.2]]
    # Pairs by proxy: {0,1} tied -> 0.5; {0,2} 1; {0,3} 1; {1,2} 0; {1,3} 0; {2,3} 1.
    assert best_of_n(gold, 2, by=proxy) == pytest.approx(3.5 / 6)
    assert best_of_n(gold, 1, by=proxy) == pytest.approx(0.5)


def test_best_of_n_refuses_what_it_cannot_answer():
    with pytest.raises(ValueError, match="n is 3"):
        best_of_n([[1.0, 2.0]], 3)
    with pytest.raises(ValueError, match="finite"):
        best_of_n([[1.0, float("nan")]], 1)
    with pytest.raises(ValueError, match="prompts, K"):
        best_of_n([1.0], 1)
