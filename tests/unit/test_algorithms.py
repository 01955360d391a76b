"""Advantages, losses and KL against golden values, and their gradients."""

import math

import pytest
import torch

from atelier.algorithms.advantages import (
    advantage_shares,
    comparable,
    each_reward_advantages,
    extremes,
    flat_groups,
    group_advantages,
    weight_shares,
    zero_std_share,
)
from atelier.algorithms.comparison import Comparison
from atelier.algorithms.grpo import Grpo
from atelier.algorithms.kl import k3, latent_mean, velocity
from atelier.algorithms.policy_loss import clipped_policy_loss
from atelier.config.sections.algorithm import AlgorithmConfig
from atelier.config.sections.train import EmaConfig
from atelier.data.prompts import Prompt
from atelier.dynamics.log_probs import gaussian_mean, ratio_norm
from atelier.dynamics.transitions import Transition, cps, flow_sde, steps_of, wan_sde
from atelier.errors import Stopped
from atelier.policies.base import Replay, Sample
from atelier.training.ema import Ema, ema_decay
from atelier.training.scores import StepScores, truth_metrics

GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
REWARDS = torch.tensor([0, 0.5, 1, 0.2, 0.2, 0.8])
VALID = torch.ones(6, dtype=torch.bool)


def grpo(config: AlgorithmConfig, clip_range: tuple[float, float], weights=()) -> Grpo:
    return Grpo(config, clip_range, Comparison(config, dict(weights)))


@pytest.mark.parametrize(
    ("std", "golden"),
    [
        ("group", [-1.224445, 0, 1.224445, -0.706857, -0.706857, 1.413714]),
        ("batch", [-1.409126, 0, 1.409126, -0.56365, -0.56365, 1.127301]),
        ("none", [-0.5, 0, 0.5, -0.2, -0.2, 0.4]),
    ],
)
def test_golden_advantages(std: str, golden: list[float]) -> None:
    result = group_advantages(REWARDS, GROUPS, VALID, std)
    assert result.tolist() == pytest.approx(golden, abs=2e-6)


def test_a_missing_score_changes_no_statistic_of_its_group() -> None:
    rewards = torch.tensor([0, 0.5, 1, math.nan])
    groups = torch.tensor([0, 0, 0, 0])
    valid = torch.tensor([True, True, True, False])
    for std in ("group", "batch", "none"):
        with_missing = group_advantages(rewards, groups, valid, std)
        without = group_advantages(rewards[:3], groups[:3], valid[:3], std)
        assert with_missing.tolist() == [*without.tolist(), 0.0]


def test_a_group_with_one_member_left_has_no_advantage() -> None:
    valid = torch.tensor([True, False, False, True, True, True])
    assert group_advantages(REWARDS, GROUPS, valid)[:3].tolist() == [0, 0, 0]


def test_group_order_does_not_matter() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = group_advantages(REWARDS[order], GROUPS[order], VALID)
    assert torch.equal(shuffled, group_advantages(REWARDS, GROUPS, VALID)[order])


def test_trimmed_statistics_leave_the_lowest_out() -> None:
    """Worked by hand: of 0, .2, .4, .9 a quarter is left out: mean .5, std sqrt(.26 / 3)."""
    rewards, groups = torch.tensor([0.2, 0.9, 0.0, 0.4]), torch.zeros(4, dtype=torch.int64)
    result = group_advantages(rewards, groups, torch.ones(4, dtype=torch.bool), trim=0.25)
    spread = math.sqrt(0.26 / 3) + 1e-4
    assert result.tolist() == pytest.approx([x / spread for x in (-0.3, 0.4, -0.5, -0.1)])


def test_a_group_with_too_few_scores_takes_no_part() -> None:
    """Groups of 4 with 4, 2, 1 and 0 scores."""
    groups = torch.arange(16) // 4
    valid = torch.tensor([True] * 4 + [True, False, True, False] + [True] + [False] * 7)
    counts = {share: comparable(groups, valid, share).reshape(4, 4).sum(1).tolist() for share in
              (0.0, 0.5, 0.51, 1.0)}  # fmt: skip
    assert counts == {0.0: [4, 2, 0, 0], 0.5: [4, 2, 0, 0], 0.51: [4, 0, 0, 0], 1.0: [4, 0, 0, 0]}
    assert not (comparable(groups, valid, 0.5) & ~valid).any()
    twenty = torch.zeros(20, dtype=torch.int64)
    assert comparable(twenty, torch.arange(20) < 11, 0.55).sum() == 11


def test_too_few_scores_give_nobody_an_advantage_and_harm_no_other_group() -> None:
    total = torch.tensor([0.0, 1.0, 2.0, 5.0, torch.nan, torch.nan, 0.0, 4.0, torch.nan])
    groups = torch.arange(9) // 3
    scored = StepScores(torch.arange(9), total, ~total.isnan(), groups, {}, None)
    for std in ("group", "batch", "none"):
        config = AlgorithmConfig(advantage_std=std)
        relative = Comparison(config, {}, 0.5).advantages(scored)
        assert relative.kept.tolist() == [True] * 3 + [False] * 3 + [True, True, False]
        assert relative.values[3:6, 0].tolist() == [0, 0, 0]
        assert relative.values.isfinite().all()
    without = StepScores(
        torch.arange(6), *(one[groups != 1] for one in (total, ~total.isnan(), groups)), {}, None
    )
    expected = Comparison(config, {}, 0.5).advantages(without).values
    assert torch.equal(relative.values[groups != 1], expected)


def test_the_advantage_is_shared_among_the_rewards_that_make_it() -> None:
    """Worked by hand. Centred, a: -1, 1 and b: -2, 2 and 1, -1; their sums -3, 3 and 0, 0; the
    share of a: (3 + 3 - 0 + 0) / 18, of b: (6 + 6 + 0 + 0) / 18. A missing one takes no part."""
    groups = torch.tensor([0, 0, 1, 1, 1])
    valid = torch.tensor([True, True, True, True, False])
    parts = {
        "a": torch.tensor([4.0, 6.0, 0.0, 2.0, torch.nan]),
        "b": torch.tensor([0.0, 4.0, 5.0, 3.0, 100.0]),
    }
    shares = advantage_shares(parts, groups, valid)
    assert shares == pytest.approx({"a": 1 / 3, "b": 2 / 3})
    against = advantage_shares({"a": parts["a"], "b": -parts["a"] / 2}, groups, valid)
    assert against == pytest.approx({"a": 2, "b": -1})


def test_a_total_that_does_not_vary_has_no_shares() -> None:
    tenth = torch.full((3,), 0.1)
    groups = torch.zeros(3, dtype=torch.int64)
    flat = {"a": tenth, "b": tenth * 3}
    assert advantage_shares(flat, groups, tenth > 0) == {"a": 0, "b": 0}
    assert advantage_shares(flat, groups, tenth < 0) == {"a": 0, "b": 0}
    cancelling = {"a": torch.tensor([1.0, 2.0, 3.0]), "b": torch.tensor([3.0, 2.0, 1.0])}
    assert advantage_shares(cancelling, groups, tenth > 0) == {"a": 0, "b": 0}


def test_each_reward_counts_alike_whatever_its_scale() -> None:
    """Worked by hand: both rewards of a group of two are +-1, so weights 3 and 1 give +-.5."""
    groups, valid = torch.tensor([0, 0]), torch.tensor([True, True])
    rewards = {"wide": torch.tensor([0.0, 1000.0]), "narrow": torch.tensor([0.2, 0.1])}
    shares = weight_shares({"wide": 3.0, "narrow": 1.0}, valid)
    result = each_reward_advantages(rewards, shares, groups, valid)
    assert result.tolist() == pytest.approx([-0.5, 0.5], abs=2e-3)
    whole = each_reward_advantages(rewards, {"wide": 3.0, "narrow": 1.0}, groups, valid)
    assert whole.tolist() == pytest.approx([-2, 2], abs=8e-3)
    total = group_advantages(3 * rewards["wide"] + rewards["narrow"], groups, valid)
    assert total.tolist() == pytest.approx([-1, 1], abs=1e-6)
    alone = each_reward_advantages(rewards, {"wide": 0.0, "narrow": 2.0}, groups, valid)
    assert alone.tolist() == pytest.approx([2, -2], abs=4e-3)


def test_gdpo_is_each_reward_scaled_over_the_step() -> None:
    """Groups (0, 1) and (0, 1, 1): per group +-1 and -sqrt 2, 1/sqrt 2 twice; then whitened."""
    values = {"a": torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])}
    scored = StepScores(
        torch.arange(5),
        values["a"],
        torch.ones(5, dtype=torch.bool),
        torch.tensor([0, 0, 1, 1, 1]),
        values,
        None,
    )
    algorithm = grpo(AlgorithmConfig(advantage_from="gdpo"), (0.1, 0.1), {"a": 1.0})
    plain = [-1, 1, -math.sqrt(2), 1 / math.sqrt(2), 1 / math.sqrt(2)]
    std = math.sqrt(sum(value**2 for value in plain) / 5)
    result = algorithm.advantages(scored).values[:, 0]
    assert result.tolist() == pytest.approx([value / std for value in plain], abs=1e-3)


def test_best_and_worst_of_n() -> None:
    advantages = torch.tensor([0.1, 0.9, -0.5, 0.3, 7.0, 0.0, 0.0, 1.0])
    groups = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    valid = torch.tensor([True] * 4 + [False] + [True] * 3)
    kept = extremes(advantages, groups, valid, 2)
    assert kept.tolist() == [False, True, True, False, False, True, False, True]
    assert extremes(advantages, groups, valid, 4).tolist() == valid.tolist()


def test_kl_in_the_reward_is_compared_action_by_action() -> None:
    scored = StepScores(
        torch.arange(2),
        torch.tensor([1.0, 0.0]),
        torch.ones(2, dtype=torch.bool),
        torch.tensor([0, 0]),
        {},
        None,
    )
    config = AlgorithmConfig(beta=2.0, kl_placement="reward", advantage_std="none")
    distances = torch.tensor([[0.1, 0.6], [0.0, 0.0]])
    result = grpo(config, (0.1, 0.1)).advantages(scored, distances)
    assert result.values.flatten().tolist() == pytest.approx([0.4, -0.1, -0.4, 0.1])
    assert result.of(torch.tensor([1]), slice(1, 2)).tolist() == [[pytest.approx(0.1)]]


def test_a_group_without_scores_is_not_flat_but_teaches_nothing() -> None:
    """Other images in its place would not be scored either."""
    rewards = torch.tensor([1.0, 1.0, float("nan"), float("nan"), 0.0, 1.0])
    groups = torch.tensor([4, 4, 5, 5, 6, 6])
    valid = torch.tensor([True, True, False, False, True, True])
    assert flat_groups(rewards, groups, valid).tolist() == [4]
    assert zero_std_share(rewards, groups, valid) == pytest.approx(2 / 3)
    assert flat_groups(rewards, groups, ~valid & False).tolist() == []


def test_zero_std_share_counts_groups_that_teach_nothing() -> None:
    rewards = torch.tensor([0.3, 0.3, 0.3, 0.2, 0.2, 0.8])
    assert zero_std_share(rewards, GROUPS, VALID) == 0.5
    assert zero_std_share(REWARDS, GROUPS, VALID) == 0.0


def test_golden_policy_loss() -> None:
    log_ratio = torch.tensor([[5e-4], [-2e-4], [-5e-5], [0.1]], dtype=torch.float64)
    advantages = torch.tensor([2.0, -1, 7, 0], dtype=torch.float64).clamp(-5, 5)[:, None]
    old = torch.zeros_like(log_ratio)
    loss = clipped_policy_loss(log_ratio, old, advantages, 1e-4, 1e-4)
    assert loss.loss.mean().item() == pytest.approx(-1.500013, abs=1e-6)
    assert (loss.log_ratio**2).mean().item() / 2 == pytest.approx(0.00125004, abs=1e-8)
    assert loss.clipped_above.float().mean() == 0.5
    assert loss.clipped_below.float().mean() == 0.25


def _guarded(x, v_old, v_new, draws) -> tuple[torch.Tensor, float, list[Transition]]:
    """Log-ratio of ratio_norm at step .8 -> .5, and 1 / h."""
    step = steps_of([1.0, 0.8, 0.5, 0.0])[1]
    old, new = flow_sde(x, v_old, step, 0.7), flow_sde(x, v_new, step, 0.7)
    x_next = old.mean + old.std * draws
    difference = ratio_norm(x_next, new, draws) - ratio_norm(x_next, old, draws)
    return difference, -1 / step.dt, [old, new]


def test_golden_guard() -> None:
    rows = [
        [(0.5, -1), (0.2, 0.4)],
        [(-0.3, 0.6), (0.1, -0.2)],
        [(-0.2, 0.5), (0.4, -0.6)],
        [(1, -0.5), (0.25, 2)],
    ]
    x, v_old, v_new, draws = (torch.tensor(row, dtype=torch.float64) for row in rows)
    log_ratio, weight, (old, new) = _guarded(x, v_old, v_new, draws)
    assert old.mean.flatten().tolist() == pytest.approx([0.4283, -0.8566, 0.08915, 0.3277])
    assert new.mean.flatten().tolist() == pytest.approx([0.39095, -0.81925, -0.0229, 0.4771])
    x_next = old.mean + old.std * draws
    plain = gaussian_mean(x_next, new, draws) - gaussian_mean(x_next, old, draws)
    assert plain.tolist() == pytest.approx([-0.037717, 0.161739], abs=1e-6)
    assert log_ratio.exp().tolist() == pytest.approx([0.972376, 1.144988], abs=1e-6)
    # A sample's correction is its own: the original's, shared by a micro-batch, gives .977475.
    bias = ((new.mean - old.mean) ** 2).mean(1) / (2 * old.std**2)
    assert torch.allclose(log_ratio, (plain + bias) * old.std)

    replay = Replay(log_ratio[:, None], weight=torch.full((2, 1), weight))
    algorithm = grpo(AlgorithmConfig(), (2e-6, 2e-6))
    terms = algorithm.loss(replay, torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]]))
    assert terms.loss.mean().item() == pytest.approx(0.287686, abs=1e-6)


def test_asymmetric_clipping() -> None:
    log_ratio = torch.tensor([[0.15], [-0.15]])
    loss = clipped_policy_loss(log_ratio, torch.zeros(2, 1), torch.ones(2, 1), 0.1, 0.2)
    assert not loss.clipped_above.any()
    assert loss.clipped_below.flatten().tolist() == [False, True]


def _kl_statistics(kind, noise_level: float) -> dict[str, torch.Tensor]:
    step = steps_of([1.0, 0.8, 0.5, 0.0])[1]
    x = torch.tensor([[0.5, -1.0]], dtype=torch.float64)
    v = torch.tensor([[-0.3, 0.6]], dtype=torch.float64, requires_grad=True)
    v_ref = torch.tensor([[-0.1, 0.5]], dtype=torch.float64)
    new, reference = kind(x, v, step, noise_level), kind(x, v_ref, step, noise_level)
    return {
        "v": v,
        "velocity": v[:, None],
        "reference_velocity": v_ref[:, None],
        "mean": new.mean[:, None],
        "reference_mean": reference.mean[:, None],
        "kl_std": torch.tensor([[new.kl_std]], dtype=torch.float64),
    }


@pytest.mark.parametrize(
    ("kind", "noise_level", "golden"),
    [(flow_sde, 0.7, 0.00088968), (cps, 0.8, 0.00753081), (wan_sde, 1.0, 0.01011677)],
)
def test_golden_latent_mean_kl(kind, noise_level: float, golden: float) -> None:
    statistics = _kl_statistics(kind, noise_level)
    kl = latent_mean(statistics)
    assert kl.shape == (1, 1)
    assert kl.item() == pytest.approx(golden, abs=1e-8)


@pytest.mark.parametrize("form", [latent_mean, velocity])
def test_kl_has_a_gradient(form) -> None:
    statistics = _kl_statistics(cps, 0.8)
    (gradient,) = torch.autograd.grad(form(statistics).sum(), statistics["v"])
    assert gradient.abs().min() > 0


def test_velocity_kl_closed_form() -> None:
    assert velocity(_kl_statistics(cps, 0.8)).item() == pytest.approx((0.2**2 + 0.1**2) / 2)


def test_k3_is_zero_at_the_reference_and_positive_elsewhere() -> None:
    log_prob = torch.tensor([[-1.0, -2.0]])
    assert k3({"log_prob": log_prob, "reference_log_prob": log_prob}).abs().max() == 0
    assert k3({"log_prob": log_prob, "reference_log_prob": log_prob - 0.3}).min() > 0


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_every_loss_term_has_a_gradient(beta: float) -> None:
    algorithm = grpo(AlgorithmConfig(beta=beta, kl="velocity"), (0.1, 0.1))
    log_prob = torch.zeros(2, 1, requires_grad=True)
    v = torch.ones(2, 1, 3, requires_grad=True)
    replay = Replay(log_prob, {"velocity": v, "reference_velocity": torch.zeros(2, 1, 3)})
    terms = algorithm.loss(replay, torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]]))
    terms.loss.sum().backward()
    assert log_prob.grad.flatten().tolist() == [-1.0, 1.0]
    if beta:
        assert v.grad.flatten().tolist() == pytest.approx([beta * 2 / 3] * 6)
    else:
        assert v.grad is None


def test_split_clip_fractions_count_only_where_the_clip_acts() -> None:
    algorithm = grpo(AlgorithmConfig(), (0.1, 0.1))
    log_prob = torch.tensor([[0.5], [0.5], [-0.5], [-0.5]])
    advantages = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    metrics = algorithm.loss(Replay(log_prob), torch.zeros(4, 1), advantages).metrics
    assert metrics["clip/positive"].flatten().tolist() == [1, 0, 0, 0]
    assert metrics["clip/negative"].flatten().tolist() == [0, 0, 0, 1]
    assert metrics["clip/above"].flatten().tolist() == [1, 1, 0, 0]


def test_ratio_gap() -> None:
    gap = grpo(AlgorithmConfig(), (0.1, 0.1)).gap(torch.tensor([0.0, 0.1]))
    assert gap["max"] == pytest.approx(math.expm1(0.1), rel=1e-5)
    assert gap["mean"] == pytest.approx(math.expm1(0.1) / 2, rel=1e-5)


def test_a_step_without_a_number_stops_with_words() -> None:
    with pytest.raises(Stopped, match=r"missing or NaN.*resume from an earlier checkpoint"):
        grpo(AlgorithmConfig(), (0.1, 0.1)).gap(torch.zeros(0))


def test_golden_ema_decays() -> None:
    golden = {0: 0.1, 7: 0.470588, 15: 0.64, 71: 0.888889, 79: 0.898876, 80: 0.9}
    for updates, decay in golden.items():
        assert ema_decay(updates, 0.9) == pytest.approx(decay, abs=1e-6)


def test_golden_ema_of_a_jump() -> None:
    ema = Ema(EmaConfig(decay=0.9, every=8), {"w": torch.ones(1)})
    seen = {}
    for n in range(24):
        if ema.due(n):
            ema.update(n, {"w": torch.full((1,), 2.0)})
        seen[n] = ema.weights["w"].item()
    assert seen[6] == 1
    assert [seen[7], seen[15], seen[23]] == pytest.approx([1.529412, 1.698824, 1.780963], abs=1e-6)


def test_ground_truth_is_told_apart_from_what_was_drawn():
    """Four images, the last two given; a drawn one has no score."""
    total = torch.tensor([0.5, float("nan"), 1.0, 0.0])
    scored = StepScores(torch.arange(4), total, ~total.isnan(), torch.zeros(4), {}, None)
    prompt = Prompt(0, 0, "a red circle")
    samples = [Sample(i, 0, prompt, truth=prompt if i > 1 else None) for i in range(4)]
    assert truth_metrics(scored, samples) == {"ground_truth/share": 0.5, "reward/drawn": 0.5}
    assert truth_metrics(scored, samples[:2] * 2)["ground_truth/share"] == 0
    given = [Sample(i, 0, prompt, truth=prompt) for i in range(4)]
    assert truth_metrics(scored, given) == {"ground_truth/share": 1.0}
