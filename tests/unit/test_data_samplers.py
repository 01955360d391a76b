"""Keys and samplers: pure functions of step and seed, epochs without repeats, right proportions."""

from collections import Counter

import pytest

from atelier.data.keys import key, uniform
from atelier.data.prompts import Prompt
from atelier.data.samplers import (
    other_indices,
    prompt_indices,
    row_indices,
    sampling_shares,
    weighted_indices,
)
from atelier.errors import DataError, PlanError


def test_keys_are_64_bit_stable_and_injective_over_their_parts():
    assert key("epoch", 1, 2) == key("epoch", 1, 2)
    assert 0 <= key("a") < 2**64
    different = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (1,),
        ("1",),
        (True,),
        (1.0,),
        (None,),
        (b"1",),
    ]
    assert len({key(*parts) for parts in different}) == len(different)
    # Pinned: another value would silently change every run's prompts, noise and splits.
    assert key("atelier", 0) == 5015514187082838647
    with pytest.raises(TypeError, match="list"):
        key([1])


def test_keyed_uniforms_are_uniform():
    draws = [uniform("draw", index) for index in range(4000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.02


@pytest.mark.parametrize(("prompts", "per_step"), [(12, 4), (13, 4), (5, 5), (7, 1)])
def test_an_epoch_never_repeats_a_prompt(prompts, per_step):
    steps = prompts // per_step
    for epoch in range(5):
        met = [
            index
            for step in range(epoch * steps, (epoch + 1) * steps)
            for index in prompt_indices(prompts, step, per_step, seed=3)
        ]
        assert len(set(met)) == len(met) == steps * per_step
        assert set(met) <= set(range(prompts))


def test_other_prompts_are_of_no_earlier_round():
    for step in range(1, 9):
        rounds = [prompt_indices(16, step, 4, seed=3)]
        rounds += [other_indices(16, step, 4, 3, number) for number in (1, 2, 3)]
        assert sorted(index for one in rounds for index in one) == list(range(16))
    assert other_indices(16, 1, 4, 3, 1) != other_indices(16, 2, 4, 3, 1)
    with pytest.raises(PlanError, match="a step may need 20 prompts, and there are 16"):
        other_indices(16, 1, 4, 3, 4)


def test_every_prompt_is_met_over_epochs_even_where_steps_leave_a_rest():
    met = {index for step in range(60) for index in prompt_indices(13, step, 4, seed=0)}
    assert met == set(range(13))


def test_epochs_and_seeds_differ_and_steps_are_pure():
    first = [prompt_indices(64, step, 64, seed=0) for step in range(3)]
    assert first[0] != first[1] != first[2]
    assert first[0] != prompt_indices(64, 0, 64, seed=1)
    assert first[2] == prompt_indices(64, 2, 64, seed=0)


@pytest.mark.parametrize(
    ("prompts", "step", "per_step"), [(4, 0, 5), (0, 0, 1), (4, 0, 0), (4, -1, 2)]
)
def test_impossible_plans_are_refused(prompts, step, per_step):
    with pytest.raises(PlanError, match=r"train\.prompts_per_step"):
        prompt_indices(prompts, step, per_step, seed=0)


def _met_share(weights, mode, sizes=(300, 100), per_step=8, steps=400):
    ids = [dataset for dataset, size in enumerate(sizes) for _ in range(size)]
    shares = sampling_shares(ids, weights, mode)
    met = Counter()
    for step in range(steps):
        chosen = weighted_indices(shares, step, per_step, seed=1)
        assert len(set(chosen)) == per_step
        met.update(ids[index] for index in chosen)
    return met[1] / met.total()


def test_sample_proportional_multiplies_the_uniform_share():
    assert _met_share({0: 1.0, 1: 3.0}, "sample_proportional") == pytest.approx(0.5, abs=0.03)


def test_weight_only_ignores_the_size():
    assert _met_share({0: 1.0, 1: 1.0}, "weight_only") == pytest.approx(0.5, abs=0.03)
    assert _met_share({0: 3.0, 1: 1.0}, "weight_only") == pytest.approx(0.25, abs=0.03)


def test_shares_as_far_apart_as_weights_may_be_are_drawn():
    shares = sampling_shares([0] * 4 + [1] * 4, {0: 1e-6, 1: 1e6}, "sample_proportional")
    drawn = [weighted_indices(shares, step, 4, seed=0) for step in range(50)]
    assert all({*step} == {4, 5, 6, 7} for step in drawn)
    assert len({tuple(step) for step in drawn}) > 10
    assert sorted(weighted_indices(shares, 0, 8, seed=0)) == list(range(8))


def test_equal_shares_keep_epochs():
    shares = sampling_shares([0] * 6 + [1] * 6, {0: 1, 1: 1}, "weight_only")
    met = [index for step in range(3) for index in weighted_indices(shares, step, 4, 0)]
    assert sorted(met) == list(range(12))


def test_a_mixture_is_a_pure_function_of_the_step():
    shares = sampling_shares([0] * 6 + [1] * 3, {0: 1, 1: 2}, "weight_only")
    draws = [weighted_indices(shares, step, 4, 0) for step in range(9)]
    assert draws[7] == weighted_indices(shares, 7, 4, 0)
    assert len({tuple(draw) for draw in draws}) > 5


@pytest.mark.parametrize("weights", [{0: 1, 1: 2}, {0: 1, 1: 1}])
def test_other_rounds_of_a_mixture_have_other_prompts(weights):
    shares = sampling_shares([0] * 6 + [1] * 6, weights, "sample_proportional")
    rounds = [weighted_indices(shares, 3, 4, 0, round) for round in range(3)]
    assert sorted(index for drawn in rounds for index in drawn) == list(range(12))
    with pytest.raises(PlanError, match=r"train\.resample_rounds 3: a step may need 16 prompts"):
        weighted_indices(shares, 3, 4, 0, round=3)


@pytest.mark.parametrize(
    ("weights", "mode", "message"),
    [
        ({0: 1.0}, "weight_only", r"dataset \[1\]"),
        ({0: 1.0, 1: 0.0}, "weight_only", r"dataset \[1\]"),
        ({0: 1.0, 1: float("nan")}, "sample_proportional", r"dataset \[1\]"),
        ({0: 1.0, 1: 1.0}, "uniform", "sampling_mode 'uniform'"),
    ],
)
def test_impossible_mixtures_are_refused(weights, mode, message):
    with pytest.raises(PlanError, match=message):
        sampling_shares([0, 0, 1], weights, mode)


def _table(pairs, singles):
    paired = [
        Prompt(2 * pair + place, 0, f"{pair} {place}", {"pair": pair, "caption": place + 1})
        for pair in range(pairs)
        for place in (0, 1)
    ]
    return paired + [Prompt(2 * pairs + i, 0, f"single {i}") for i in range(singles)]


def test_a_table_without_pairs_is_sampled_as_ever():
    table = _table(0, 13)
    for step in range(1, 9):
        assert row_indices(table, step, 4, 3) == prompt_indices(13, step, 4, 3)
        assert row_indices(table, step, 3, 3, 2) == other_indices(13, step, 3, 3, 2)


@pytest.mark.parametrize(
    ("pairs", "singles", "per_step"),
    [(6, 0, 4), (7, 0, 6), (5, 4, 4), (5, 7, 6), (4, 1, 4), (1, 0, 2), (3, 3, 8), (2, 9, 4)],
)
def test_an_epoch_holds_every_pair_and_every_single_prompt(pairs, singles, per_step):
    table = _table(pairs, singles)
    rows = pairs + (singles + 1) // 2
    steps = -(-2 * rows // per_step)
    for epoch in range(6):
        met = []
        for step in range(1 + epoch * steps, 1 + (epoch + 1) * steps):
            chosen = row_indices(table, step, per_step, seed=3)
            assert chosen == row_indices(table, step, per_step, seed=3)
            assert len(set(chosen)) == len(chosen) == per_step, "nothing twice in a step"
            met += chosen
        assert set(met) == set(range(len(table))), "nothing is left out"
        # What the last step needs to be whole, and nothing else, is met a second time.
        assert len(met) - len(set(met)) == steps * per_step - len(table)
        halves = [place for place in met if place < 2 * pairs]
        assert all(place ^ 1 in halves for place in halves)


def test_both_of_a_pair_are_neighbours_in_a_step():
    table = _table(20, 10)
    for step in range(1, 40):
        chosen = row_indices(table, step, 10, seed=0)
        for first, second in zip(chosen[::2], chosen[1::2], strict=True):
            is_paired = first < 40
            assert is_paired == (second < 40)
            assert not is_paired or (second == first + 1 and first % 2 == 0)


def test_single_prompts_are_coupled_anew_each_epoch():
    table = _table(1, 8)
    couples = [
        {tuple(row_indices(table, 1 + epoch * 5 + at, 2, 0)) for at in range(5)} - {(0, 1)}
        for epoch in range(3)
    ]
    assert couples[0] != couples[1] != couples[2]


def test_rounds_of_other_rows_hold_none_of_an_earlier_one():
    table = _table(7, 5)
    for step in range(1, 12):
        rounds = [row_indices(table, step, 4, 3, round) for round in (0, 1, 2, 3)]
        met = [place for one in rounds for place in one]
        assert len(set(met)) == len(met) == 16
        for chosen in rounds[1:]:
            assert all(
                second == first + 1
                for first, second in zip(chosen[::2], chosen[1::2], strict=True)
                if first < 14
            )
    with pytest.raises(PlanError, match=r"train\.resample_rounds 5: a step may need 12 rows"):
        row_indices(table, 1, 4, 3, 5)


def test_an_odd_step_of_pairs_is_refused():
    with pytest.raises(PlanError, match=r"train\.prompts_per_step 3: must be even"):
        row_indices(_table(4, 0), 1, 3, 0)
    with pytest.raises(PlanError, match=r"train\.prompts_per_step 10 exceeds the 8"):
        row_indices(_table(4, 0), 1, 10, 0)


def test_half_a_pair_is_no_table():
    table = _table(3, 0)
    for torn in (table[:5], [*table[:3], *table[4:]], [*table, *table[:2]]):
        with pytest.raises(DataError, match="must be two prompts, one behind the other"):
            row_indices(torn, 1, 2, 0)
