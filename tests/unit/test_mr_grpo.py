"""MR-GRPO against golden values."""

from __future__ import annotations

import math

import pytest
import torch

from atelier.algorithms.base import Advantages
from atelier.algorithms.comparison import Comparison
from atelier.algorithms.grpo import Grpo
from atelier.algorithms.kl import KL_FORMS, latent_mean, scaled_velocity
from atelier.algorithms.nft import nft_loss, optimality
from atelier.algorithms.policy_loss import clipped_policy_loss
from atelier.algorithms.ratio import ratio_of
from atelier.algorithms.supervised import flow_matching_loss, loss_shares
from atelier.config.log_probs import USUAL_LOG_PROBS
from atelier.config.sections.algorithm import AlgorithmConfig
from atelier.config.sections.learning_rate import ScheduleConfig, learning_rate
from atelier.config.sections.sft import SftConfig
from atelier.dynamics.log_probs import LOG_PROBS
from atelier.dynamics.schedules import training_level
from atelier.dynamics.transitions import TRANSITIONS, noised, steps_of
from atelier.policies.base import Replay
from atelier.training.ema import ema_decay
from atelier.training.scores import StepScores, comparison_metrics


def of(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


STEPS = steps_of([1.0, 0.8, 0.5, 0.0])
X, V, V_REF, X_NEXT = of(0.5, -1.0), of(-0.3, 0.6), of(-0.1, 0.5), of(1.0, -0.5)

# Item 3: an old log-prob, and the ratio of a policy to itself where bfloat16 holds the old one.
ROUNDED = {-0.9: 0.998439, -0.05: 1.000049, -0.25: 1.0}


@pytest.mark.parametrize(("log_prob", "golden"), ROUNDED.items())
def test_old_log_probs_are_not_rounded(log_prob: float, golden: float) -> None:
    """As there, by more than a clip range of 1e-4: an update would begin outside of it. Replays
    carry float32, and a policy's ratio to itself is 1."""
    old = torch.full((4, 2), log_prob)
    assert ratio_of(old - old.bfloat16().float())[0, 0].item() == pytest.approx(golden, abs=1e-6)
    step, latents = steps_of([0.8, 0.5])[0], torch.randn(4, 1, 2, 2)
    found = TRANSITIONS["cps"](latents, latents.bfloat16().float(), step, 1.0)
    replayed = LOG_PROBS["cps_raw"].function(latents, found, latents)
    assert replayed.dtype == torch.float32
    assert bool((ratio_of(replayed - replayed) == 1).all())


# Item 1: dynamics, noise level -> (mean, s, log-prob) of two steps, KLs of velocities and of means.
SAMPLERS = {
    ("cps", 1.0): (
        ((0.16, -0.32), 0.8, -0.369),
        ((0.37, -0.74), 0.5, -0.22725),
        (0.05, 0.008),
    ),
    ("cps", 0.5): (
        ((0.442843, -0.885685), 0.565685, -0.229589),
        ((0.525563, -1.051127), 0.353553, -0.264415),
        (0.1, 0.010843),
    ),
    ("flow_sde", 1.0): (
        ((0.31, -0.62), 2.236068, -1.041564),
        ((0.26, -0.52), 2, -1.124266),
        (0.003125, 0.000633),
    ),
    ("flow_sde", 0.5): (
        ((0.4975, -0.995), 1.118034, -0.723323),
        ((0.5075, -1.015), 1, -0.740103),
        (0.0125, 0.001424),
    ),
    ("dance_sde", 1.0): (
        ((0.51, -1.02), 0.447214, -0.752345),
        ((0.5075, -1.015), 0.547723, -0.740103),
        (0.041667, 0.004746),
    ),
    ("dance_sde", 0.5): (
        ((0.5475, -1.095), 0.223607, -2.214978),
        ((0.569375, -1.13875), 0.273861, -1.601936),
        (0.166667, 0.015952),
    ),
}


@pytest.mark.parametrize(("kind", "noise_level"), SAMPLERS)
@pytest.mark.parametrize("index", [0, 1])
def test_golden_samplers(kind: str, noise_level: float, index: int) -> None:
    """Item 1; flow_sde's s is without sqrt(h), and its log-prob with it."""
    mean, s, log_prob = SAMPLERS[kind, noise_level][index]
    transition = TRANSITIONS[kind](X, V, STEPS[index], noise_level)
    assert transition.mean[0].tolist() == pytest.approx(mean, abs=1e-6)
    assert transition.kl_std == pytest.approx(s, abs=1e-6)
    length = -STEPS[index].dt if kind == "flow_sde" else 1.0
    assert transition.std == pytest.approx(transition.kl_std * math.sqrt(length))
    form = LOG_PROBS[USUAL_LOG_PROBS[kind]].function
    assert form(X_NEXT, transition, X).item() == pytest.approx(log_prob, abs=1e-6)


@pytest.mark.parametrize(("kind", "noise_level"), SAMPLERS)
def test_golden_kl(kind: str, noise_level: float) -> None:
    """Item 1, at .8 -> .5; either form has a gradient."""
    v = V.clone().requires_grad_()
    new = TRANSITIONS[kind](X, v, STEPS[1], noise_level)
    reference = TRANSITIONS[kind](X, V_REF, STEPS[1], noise_level)
    statistics = {
        "velocity": v[:, None],
        "reference_velocity": V_REF[:, None],
        "mean": new.mean[:, None],
        "reference_mean": reference.mean[:, None],
        "kl_std": torch.full((1, 1), new.kl_std, dtype=torch.float64),
    }
    golden = SAMPLERS[kind, noise_level][2]
    for form, expected in zip((scaled_velocity, latent_mean), golden, strict=True):
        kl = form(statistics)
        assert kl.shape == (1, 1)
        assert kl.item() == pytest.approx(expected, abs=1e-6)
        (gradient,) = torch.autograd.grad(kl.sum(), v, retain_graph=True)
        assert gradient.abs().min() > 0
    assert KL_FORMS["scaled_velocity"] is scaled_velocity


def test_the_velocity_kl_stays_finite_where_a_step_has_no_noise() -> None:
    statistics = {
        "velocity": V[:, None],
        "reference_velocity": V_REF[:, None],
        "kl_std": torch.zeros(1, 1, dtype=torch.float64),
    }
    assert scaled_velocity(statistics).item() == pytest.approx(0.025 / 1e-7)


# Item 2 -------------------------------------------------------------------------------------------


def scored(
    rewards: dict[str, list[float]],
    weights: dict[str, list[float]],
    size: int,
    valid: list[bool] | None = None,
) -> StepScores:
    values = {name: torch.tensor(one, dtype=torch.float64) for name, one in rewards.items()}
    shares = {name: torch.tensor(one, dtype=torch.float64) for name, one in weights.items()}
    total = sum(
        torch.where(share != 0, share * values[name], 0.0) for name, share in shares.items()
    )
    count = len(total)
    known = torch.tensor(valid or [True] * count)
    return StepScores(
        torch.arange(count), total.float(), known, torch.arange(count) // size, values, None, shares
    )


TWO_REWARDS = {"a": [0, 0.5, 1, 0.1, 0.1, 0.4], "b": [0.2, 0.4, 0.9, 0.6, 0.6, 0.9]}
WEIGHTS = {"a": [0.7] * 3 + [0.2] * 3, "b": [0.3] * 3 + [0.8] * 3}
ONES = {"a": [1.0] * 6, "b": [1.0] * 6}
GRPO = {}
GLOBAL_STD = {"advantage_std": "batch"}
REINFORCE = {"advantage_over": "step"}
GDPO = {"advantage_from": "gdpo"}


def advantages(config: dict, one: StepScores) -> Advantages:
    return Comparison(AlgorithmConfig(advantage_ddof=1, **config)).advantages(one)


@pytest.mark.parametrize(
    ("config", "weights", "golden"),
    [
        (GRPO, WEIGHTS, [-0.965249, -0.065812, 1.031061, -0.577017, -0.577017, 1.154034]),
        (GLOBAL_STD, WEIGHTS, [-1.404507, -0.095762, 1.500268, -0.319206, -0.319206, 0.638412]),
        (REINFORCE, WEIGHTS, [-1.564110, -0.255365, 1.340665, -0.159603, -0.159603, 0.798015]),
        (
            {**REINFORCE, **GLOBAL_STD},
            WEIGHTS,
            [-1.564110, -0.255365, 1.340665, -0.159603, -0.159603, 0.798015],
        ),
        (GDPO, WEIGHTS, [-1.065054, -0.093314, 1.158368, -0.647304, -0.647304, 1.294608]),
        (GDPO, ONES, [-1.028037, -0.155626, 1.183663, -0.647727, -0.647727, 1.295454]),
    ],
)
def test_golden_advantages(config: dict, weights: dict, golden: list[float]) -> None:
    result = advantages(config, scored(TWO_REWARDS, weights, 3))
    assert result.values.flatten().tolist() == pytest.approx(golden, abs=2e-6)
    assert result.kept.all()


def metrics(config: dict, one: StepScores) -> dict[str, float]:
    return comparison_metrics(one, Comparison(AlgorithmConfig(advantage_ddof=1, **config)))


def test_metrics_of_a_step_that_is_compared_as_a_whole_are_of_one_group() -> None:
    """Two groups of equal rewards each, which differ from one another."""
    flat = scored({"a": [1.0, 1.0, 0.0, 0.0]}, {"a": [1.0] * 4}, 2)
    alone, whole = (metrics(config, flat) for config in (GRPO, REINFORCE))
    assert alone["advantage/zero_std_share"] == 1
    assert alone["reward/a/advantage_share"] == 0
    assert whole["advantage/zero_std_share"] == 0
    assert whole["reward/a/advantage_share"] == 1


def test_the_share_of_a_reward_is_of_what_it_adds_to_the_advantage() -> None:
    """On scales of 1 and 1000: alike under GDPO, which makes each relative on its own."""
    wide = {"a": [0.0, 1.0, 0.5], "b": [1000.0, 0.0, 2000.0]}
    one = scored(wide, {"a": [1.0] * 3, "b": [1.0] * 3}, 3)
    of_total, of_each = metrics(GRPO, one), metrics(GDPO, one)
    assert of_total["reward/b/advantage_share"] == pytest.approx(1, abs=1e-3)
    assert of_each["reward/a/advantage_share"] == pytest.approx(0.5, abs=1e-3)
    assert of_each["reward/b/advantage_share"] == pytest.approx(0.5, abs=1e-3)


def test_a_group_whose_rewards_cancel_out_teaches_under_gdpo() -> None:
    """Their totals are equal, and a reward that only logs is none that is compared."""
    rewards = {"a": [0.0, 1.0, 0.5], "b": [1.0, 0.0, 0.5], "c": [0.0, 1.0, 2.0]}
    ones = {"a": [1.0] * 3, "b": [1.0] * 3, "c": [0.0] * 3}
    one = scored(rewards, ones, 3)
    assert metrics(GRPO, one)["advantage/zero_std_share"] == 1
    assert metrics(GDPO, one)["advantage/zero_std_share"] == 0
    level = scored({**rewards, "a": [1.0] * 3, "b": [0.5] * 3}, ones, 3)
    assert metrics(GDPO, level)["advantage/zero_std_share"] == 1


def test_golden_gdpo_with_a_constant_reward() -> None:
    rewards = {"a": [0, 1, 0.2, 0.2], "b": [0.5, 0.5, 0.1, 0.3]}
    ones = {"a": [1.0] * 4, "b": [1.0] * 4}
    result = advantages(GDPO, scored(rewards, ones, 2)).values.flatten()
    assert result.tolist() == pytest.approx([-0.866164, 0.866164, -0.865674, 0.865674], abs=2e-6)


def test_a_reward_of_another_data_set_takes_no_part() -> None:
    """Weight 0 is no reward: its value there may be anything, and the result is that of the data
    sets' own rewards."""
    rewards = {"a": [0, 1, math.nan, 7e7], "b": [math.nan, -3.0, 0.1, 0.3]}
    own = {"a": [1.0, 1.0, 0, 0], "b": [0, 0, 2.0, 2.0]}
    result = advantages(GDPO, scored(rewards, own, 2)).values.flatten()
    # +-sqrt(1/2) and +-2 sqrt(1/2), by the std of the four: sqrt(5/3).
    unit = math.sqrt(0.5) / math.sqrt(5 / 3)
    assert result.tolist() == pytest.approx([-unit, unit, -2 * unit, 2 * unit], abs=2e-3)


def test_the_sizes_of_a_data_sets_weights_count() -> None:
    """Unlike MixGRPO's, whose shares of a sample sum to 1."""
    rewards = {"a": [0.0, 1, 0, 1]}
    weights = {"a": [1.0, 1, 3, 3]}
    result = advantages(GDPO, scored(rewards, weights, 2)).values.flatten()
    assert (result[3] / result[1]).item() == pytest.approx(3)
    each = {"advantage_from": "each_reward"}
    result = advantages(each, scored(rewards, weights, 2)).values.flatten()
    assert (result[3] / result[1]).item() == pytest.approx(1)


@pytest.mark.parametrize("config", [GRPO, GLOBAL_STD, REINFORCE, GDPO])
def test_missing_scores_change_no_statistic(config: dict) -> None:
    nan = math.nan
    rewards = {
        "a": [0, 0.5, 1, nan, 0.1, 0.1, 0.4, 9.0],
        "b": [0.2, 0.4, 0.9, 0.3, 0.6, 0.6, 0.9, nan],
    }
    weights = {"a": [0.7] * 4 + [0.2] * 4, "b": [0.3] * 4 + [0.8] * 4}
    there = [True, True, True, False, True, True, True, False]
    result = advantages(config, scored(rewards, weights, 4, there))
    whole = advantages(config, scored(TWO_REWARDS, WEIGHTS, 3)).values.flatten()
    own = torch.tensor(there)
    assert result.values[own].flatten().tolist() == pytest.approx(whole.tolist(), abs=2e-6)
    assert result.values[~own].flatten().tolist() == [0, 0]
    assert result.kept.tolist() == there


def test_advantages_are_clamped() -> None:
    rewards = {"a": [0.0] * 49 + [1.0]}
    one = scored(rewards, {"a": [1.0] * 50}, 50)
    assert advantages(REINFORCE, one).values.max() == 5
    assert advantages(GDPO, one).values.max() == 5


def test_one_image_alone_is_compared_with_nothing() -> None:
    """Where others of its group have no score: the unbiased std of one value would be NaN."""
    one = scored({"a": [1.0, math.nan]}, {"a": [1.0, 1.0]}, 2, [True, False])
    for config in (GRPO, GLOBAL_STD, REINFORCE, GDPO):
        found = advantages(config, one)
        assert found.values.flatten().tolist() == [0, 0]
        assert not found.kept.any()


# Items 5 to 8, 12 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "golden"), [((1e-4, 1e-4), -0.6334), ((0.1, 0.2), -0.733333)])
def test_golden_policy_loss(clip: tuple[float, float], golden: float) -> None:
    ratio = torch.tensor([[1.5], [0.5], [0.95]], dtype=torch.float64)
    relative = torch.tensor([[1.0], [-1.0], [2.0]], dtype=torch.float64)
    loss = clipped_policy_loss(ratio.log(), torch.zeros_like(ratio), relative, *clip).loss
    assert loss.mean().item() == pytest.approx(golden, abs=1e-6)


def test_golden_policy_loss_with_kl() -> None:
    """A KL of 3 at beta 5e-7, and a quarter of it all."""
    ratio = torch.tensor([[1.5], [0.5], [0.95]], dtype=torch.float64)
    config = AlgorithmConfig(beta=5e-7, kl="scaled_velocity")
    algorithm = Grpo(config, (1e-4, 1e-4), Comparison(config))
    statistics = {
        "velocity": torch.full((3, 1, 1), math.sqrt(3 * (2 + 1e-7)), dtype=torch.float64),
        "reference_velocity": torch.zeros(3, 1, 1, dtype=torch.float64),
        "kl_std": torch.ones(1, 1, dtype=torch.float64),
    }
    relative = torch.tensor([[1.0], [-1.0], [2.0]], dtype=torch.float64)
    terms = algorithm.loss(Replay(ratio.log(), statistics), torch.zeros_like(ratio), relative)
    assert terms.metrics["kl"].flatten().tolist() == pytest.approx([3.0] * 3)
    assert (terms.loss.mean() / 4).item() == pytest.approx(-0.15834963, abs=1e-8)


@pytest.mark.parametrize(("old", "golden"), [(-1.2, 9.0), (-1.4, 3.3)])
def test_golden_nft(old: float, golden: float) -> None:
    """Item 6: the policy itself as the one that sampled, and another."""
    good = optimality(torch.tensor([2.5], dtype=torch.float64))
    assert good.item() == 0.75
    level = torch.tensor([0.6], dtype=torch.float64)
    loss = nft_loss(of(-1.2), of(old), of(0.5), of(-0.4), level, good, strength=0.1)
    assert loss.item() == pytest.approx(golden, abs=2e-6)


def test_golden_kl_of_nft_is_the_velocity_one_at_a_std_of_a_tenth() -> None:
    statistics = {
        "velocity": of(0.1)[:, None],
        "reference_velocity": of(0.0)[:, None],
        "kl_std": torch.full((1, 1), 0.1, dtype=torch.float64),
    }
    assert scaled_velocity(statistics).item() == pytest.approx(0.499998, abs=1e-6)


@pytest.mark.parametrize(
    ("drawn", "level"),
    [(0.0, 1.0), (0.25, 0.9), (0.5, 0.75), (0.999, 0.002994), (0.9999, 0.002994)],
)
def test_golden_training_levels(drawn: float, level: float) -> None:
    """Item 8; none is 0, where a picture has no noise."""
    assert training_level(drawn, 3.0) == pytest.approx(level, abs=1e-6)


def test_golden_supervised_loss() -> None:
    clean, noise, level = of(0.5), of(-1.0), torch.tensor([0.9], dtype=torch.float64)
    assert noised(clean, noise, level).item() == pytest.approx(-0.85)
    velocity = of(-1.2).requires_grad_()
    loss = flow_matching_loss(velocity, clean, noise)
    assert loss.tolist() == pytest.approx([0.09])
    (gradient,) = torch.autograd.grad(loss.sum(), velocity)
    assert gradient.item() == pytest.approx(0.6)
    policy, own = loss_shares(SftConfig(coefficient=1e-4))
    assert policy * 0.5 + own * loss.item() == pytest.approx(0.499959, abs=1e-8)
    assert loss_shares(SftConfig(coefficient=0.2, mix="additive")) == (1.0, 0.2)


def test_golden_ema_decays() -> None:
    golden = {0: 0.1, 1: 0.181818, 8: 0.5, 80: 0.9, 170: 0.95, 10_000: 0.95}
    for updates, decay in golden.items():
        assert ema_decay(updates, 0.95) == pytest.approx(decay, abs=1e-6)


def test_the_warm_up_counts_updates() -> None:
    schedule = ScheduleConfig(kind="constant_with_warmup", warm_up_updates=4)
    rates = [learning_rate(2e-6, schedule, update, 100) for update in range(7)]
    assert rates == pytest.approx([0, 5e-7, 1e-6, 1.5e-6, 2e-6, 2e-6, 2e-6])
    assert learning_rate(2e-6, schedule, 99, 100) == 2e-6
