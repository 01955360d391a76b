"""Losses of ratios, and what their gradients are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from atelier.algorithms.policy_loss import (
    PolicyLoss,
    cispo_policy_loss,
    clipped_policy_loss,
    of_sequences,
    sapo_policy_loss,
    vespo_policy_loss,
)

ONE = torch.ones(1, 1)


def log_of(ratio: float) -> Tensor:
    return torch.full((1, 1), math.log(ratio), requires_grad=True)


def of_ratio(ratio: float, advantage: float, **settings) -> tuple[float, float]:
    """The clipped loss of one action, and its gradient in the log-probability."""
    log_prob = log_of(ratio)
    own = {"clip_low": 0.2, "clip_high": 0.2, **settings}
    loss = clipped_policy_loss(log_prob, torch.zeros(1, 1), advantage * ONE, **own).loss
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    return float(loss.detach()), float(gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "learns"),
    [(1.5, 1, -1.2, False), (1.5, -1, 1.5, True), (0.5, 1, -0.5, True), (0.5, -1, 0.8, False)],
)
def test_golden_clip(ratio: float, advantage: float, loss: float, learns: bool) -> None:
    found, gradient = of_ratio(ratio, advantage)
    assert found == pytest.approx(loss)
    assert (gradient != 0) == learns


def test_a_bad_action_that_became_likelier_is_bounded_by_delta() -> None:
    assert of_ratio(4.0, -1.0) == pytest.approx((4.0, 4.0))
    assert of_ratio(4.0, -1.0, delta=1.5) == pytest.approx((1.5, 0.0))
    assert of_ratio(1.4, -1.0, delta=1.5) == pytest.approx((1.4, 1.4))
    assert of_ratio(4.0, 1.0, delta=1.5) == of_ratio(4.0, 1.0)


def test_the_flags_say_where_a_clip_left_no_gradient() -> None:
    log_prob = torch.tensor([[1.5, 1.5, 0.5, 0.5, 4.0]]).log().requires_grad_()
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, -1.0]])
    for delta in (None, 3.0):
        found = clipped_policy_loss(log_prob, torch.zeros(1, 5), advantages, 0.2, 0.2, delta=delta)
        (gradient,) = torch.autograd.grad(found.loss.sum(), log_prob)
        assert torch.equal(found.cut, gradient == 0)
    assert found.clipped_above.tolist() == [[True, True, False, False, True]]


def test_ratio_of_a_sequence() -> None:
    """Of one token its own; of many the geometric mean of the trained ones, for all of them."""
    trained = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    log_ratio = torch.tensor([[0.3, 9.0, math.nan], [0.3, -0.1, 9.0], [0.1, 0.2, 0.6], [9.0] * 3])
    ratio = of_sequences(log_ratio, trained).exp()
    wanted = [math.exp(0.3), math.exp(0.1), math.exp(0.3), 1.0]
    assert torch.allclose(ratio, torch.tensor(wanted)[:, None].expand(4, 3))


def test_a_sequence_is_clipped_as_a_whole() -> None:
    """One token's ratio is far out of range, the mean of the four is not."""
    log_prob = torch.tensor([[1.0, -0.9, 0.1, 0.0]], requires_grad=True)
    trained, old = torch.ones(1, 4), torch.zeros(1, 4)
    found = clipped_policy_loss(
        of_sequences(log_prob, trained), of_sequences(old, trained), ONE, 0.2, 0.2
    )
    assert not found.cut.any()
    (gradient,) = torch.autograd.grad(found.loss.mean(), log_prob)
    assert torch.allclose(gradient, torch.full((1, 4), -math.exp(0.05) / 4))


LOSSES = {
    "clipped": lambda new, old, a: clipped_policy_loss(new, old, a, 0.2, 0.2),
    "cispo": lambda new, old, a: cispo_policy_loss(new, old, a, 4.0),
    "sapo": lambda new, old, a: sapo_policy_loss(new, old, a),
    "vespo": lambda new, old, a: vespo_policy_loss(new, old, a, torch.ones_like(new)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_where_nothing_has_moved_all_have_the_same_gradient(name: str) -> None:
    log_prob = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], requires_grad=True)
    advantages = torch.tensor([[0.7], [-1.3]])
    found: PolicyLoss = LOSSES[name](log_prob, log_prob.detach(), advantages)
    (gradient,) = torch.autograd.grad(found.loss.sum(), log_prob)
    assert torch.allclose(gradient, -advantages.expand(2, 2))
    assert not found.cut.any()
    assert found.log_ratio.abs().max() == 0


def gradient_at(name: str, ratio: float, advantage: float) -> float:
    log_prob = log_of(ratio)
    found = LOSSES[name](log_prob, torch.zeros(1, 1), advantage * ONE)
    (gradient,) = torch.autograd.grad(found.loss.sum(), log_prob)
    return float(gradient)


def test_cispo_never_loses_a_gradient_but_caps_it() -> None:
    for advantage in (1.0, -1.0):
        assert gradient_at("cispo", 3.0, advantage) == pytest.approx(-3 * advantage)
        assert gradient_at("cispo", 50.0, advantage) == pytest.approx(-5 * advantage)
    far = cispo_policy_loss(log_of(50.0), torch.zeros(1, 1), ONE, 4.0)
    assert bool(far.clipped_above.all())


@pytest.mark.parametrize(("advantage", "tau"), [(1.0, 1.0), (-1.0, 1.05)])
def test_sapo_falls_off_on_both_sides(advantage: float, tau: float) -> None:
    """d/dr of the gate is 4 s (1 - s), s the sigmoid; r more of it in the log-probability."""
    for ratio in (0.2, 3.0):
        s = 1 / (1 + math.exp(-tau * (ratio - 1)))
        wanted = -advantage * 4 * s * (1 - s) * ratio
        assert gradient_at("sapo", ratio, advantage) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("advantage", "weight"), [(1.0, 4 * math.exp(-3)), (-1.0, 8 * math.exp(-2))]
)
def test_vespo_weighs_a_token_by_its_whole_sequence(advantage: float, weight: float) -> None:
    """Worked by hand: w = 2, of two tokens; a third is not trained."""
    log_prob = torch.tensor([[-1.0, -2.0, -9.0]], requires_grad=True)
    old = log_prob.detach() - torch.tensor([[math.log(4), math.log(0.5), 1.0]])
    trained = torch.tensor([[1.0, 1.0, 0.0]])
    found = vespo_policy_loss(log_prob, old, advantage * ONE, trained)
    (gradient,) = torch.autograd.grad((found.loss * trained).sum(), log_prob)
    assert gradient[0].tolist() == pytest.approx([-advantage * weight] * 2 + [0.0], rel=1e-5)
    lost = vespo_policy_loss(log_prob, old - 100, advantage * ONE, trained)
    assert bool(lost.loss.isfinite().all())
