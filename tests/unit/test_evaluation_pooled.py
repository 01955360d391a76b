"""Shares that are pooled over prompts: hand-worked scores, and intervals that hold."""

from __future__ import annotations

import numpy as np
import pytest

from atelier.evaluation.pooled import Pool, pooled_difference, pooled_interval


def pool(shown: list[list[float]], judged: list[list[float]]) -> Pool:
    return Pool(np.array(shown, dtype=float), np.array(judged, dtype=float))


def test_points_count_alike_and_parts_count_alike() -> None:
    micro = pool([[2], [2], [0], [0]], [[3], [2], [2], [1]])
    assert micro.score == 0.5  # and not the mean of the prompts' shares, 5/12
    assert micro.contributions.mean() == pytest.approx(0.5)
    macro = pool([[1, 1], [0, 0], [0, 1]], [[1, 2], [1, 0], [0, 1]])
    assert macro.score == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert macro.contributions.mean() == pytest.approx(macro.score)


def test_one_prompt_has_no_interval() -> None:
    found = pooled_interval(pool([[1]], [[4]]))
    assert (found.mean, found.low, found.high, found.n) == (0.25, None, None, 1)
    assert pooled_difference(pool([[1]], [[4]]), pool([[3]], [[4]])).low is None


def test_a_share_of_equal_prompts_is_their_mean_with_the_interval_of_a_mean() -> None:
    from atelier.evaluation.statistics import mean_interval

    shares = np.random.default_rng(1).integers(0, 5, 60) / 4
    found = pooled_interval(pool([[4 * one] for one in shares], [[4]] * 60), 2000)
    plain = mean_interval(shares, 2000)
    assert (found.mean, found.low, found.high) == pytest.approx((plain.mean, plain.low, plain.high))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Prompts of 1 to 5 points that agree within a prompt: points drawn alone would be too sure."""
    rng = np.random.default_rng(3)
    truth, hits, narrow = 0.6, 0, 0
    for trial in range(200):
        points = rng.integers(1, 6, 80)
        shown = points * (rng.random(80) < truth)
        found = pooled_interval(pool(shown[:, None].tolist(), points[:, None].tolist()), 400, trial)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= truth <= found.high
        narrow += found.high - found.low < 2 * 1.96 * np.sqrt(truth * (1 - truth) / points.sum())
    assert hits >= 178
    assert narrow < 20


def test_a_difference_is_of_equal_prompts() -> None:
    rng = np.random.default_rng(5)
    judged = rng.integers(1, 6, (50, 1)).astype(float)
    before = Pool(np.floor(judged * rng.random((50, 1))), judged)
    after = Pool(np.minimum(before.shown + 1, judged), judged)
    found = pooled_difference(before, after, 1000)
    assert found.mean == pytest.approx(after.score - before.score)
    assert found.excludes_zero
    alone = pooled_interval(after, 1000)
    assert found.high - found.low < alone.high - alone.low
    same = pooled_difference(before, before, 100)
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    with pytest.raises(ValueError, match="50 and 2"):
        pooled_difference(before, pool([[1], [1]], [[1], [1]]))


def test_a_part_that_a_resample_has_no_point_of_is_left_out_of_it() -> None:
    rare = pool([[1, 0]] * 9 + [[1, 1]], [[1, 0]] * 9 + [[1, 1]])
    found = pooled_interval(rare, 500)
    assert (found.mean, found.low, found.high) == (1, 1, 1)
