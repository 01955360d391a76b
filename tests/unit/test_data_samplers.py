"""Keys and samplers: pure functions of step and seed, epochs without repeats, right proportions."""

from collections import Counter

import pytest

from atelier.data.keys import key, uniform
from atelier.data.samplers import mixed_indices, other_indices, prompt_indices
from atelier.errors import PlanError


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
    met = Counter()
    for step in range(steps):
        chosen = mixed_indices(ids, weights, mode, step, per_step, seed=1)
        assert len(set(chosen)) == per_step
        met.update(ids[index] for index in chosen)
    return met[1] / met.total()


def test_sample_proportional_multiplies_the_uniform_share():
    assert _met_share({0: 1.0, 1: 3.0}, "sample_proportional") == pytest.approx(0.5, abs=0.03)


def test_weight_only_ignores_the_size():
    assert _met_share({0: 1.0, 1: 1.0}, "weight_only") == pytest.approx(0.5, abs=0.03)
    assert _met_share({0: 3.0, 1: 1.0}, "weight_only") == pytest.approx(0.25, abs=0.03)


def test_equal_shares_keep_epochs():
    ids = [0] * 6 + [1] * 6
    met = [i for s in range(3) for i in mixed_indices(ids, {0: 1, 1: 1}, "weight_only", s, 4, 0)]
    assert sorted(met) == list(range(12))


def test_a_mixture_is_a_pure_function_of_the_step():
    ids = [0] * 6 + [1] * 3
    draws = [mixed_indices(ids, {0: 1, 1: 2}, "weight_only", step, 4, 0) for step in range(9)]
    assert draws[7] == mixed_indices(ids, {0: 1, 1: 2}, "weight_only", 7, 4, 0)
    assert len({tuple(draw) for draw in draws}) > 5


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
        mixed_indices([0, 0, 1], weights, mode, 0, 2, 0)
