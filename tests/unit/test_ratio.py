"""Ratios far out of range: what a clip, a gate or a weight of 0 takes away is 0 and never NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atelier.algorithms.comparison import Comparison
from atelier.algorithms.ground_truth import ground_truth_loss
from atelier.algorithms.grpo import Grpo
from atelier.algorithms.kl import k3
from atelier.algorithms.policy_loss import (
    cispo_policy_loss,
    clipped_policy_loss,
    sapo_policy_loss,
    vespo_policy_loss,
)
from atelier.algorithms.ratio import LARGEST_LOG_RATIO, ratio_of
from atelier.config.sections.algorithm import AlgorithmConfig
from atelier.policies.base import Replay

LOG_RATIOS = [-1e4, -100.0, -30.0, 0.1, 30.0, 88.0, 100.0, 1e4]
LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "clipped": lambda new, old, adv: clipped_policy_loss(new, old, adv, 0.2, 0.2).loss,
    "delta": lambda new, old, adv: clipped_policy_loss(new, old, adv, 0.2, 0.2, 3.0).loss,
    "cispo": lambda new, old, adv: cispo_policy_loss(new, old, adv, 4.0).loss,
    "sapo": lambda new, old, adv: sapo_policy_loss(new, old, adv).loss,
    "vespo": lambda new, old, adv: vespo_policy_loss(new, old, adv, torch.ones_like(new)).loss,
    "as_sampled": lambda new, old, adv: ground_truth_loss(new, old, adv, "as_sampled"),
    "shaped": lambda new, old, adv: ground_truth_loss(new - old, old, adv, "shaped"),
    "k3": lambda new, old, adv: k3({"reference_log_prob": old, "log_prob": new}) * adv,
}


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_finite_whatever_the_ratio(
    name: str, weight: float, advantage: float
) -> None:
    log_prob = torch.tensor([LOG_RATIOS], requires_grad=True)
    loss = LOSSES[name](log_prob, torch.zeros(1, len(LOG_RATIOS)), torch.full((1, 1), advantage))
    (gradient,) = torch.autograd.grad((weight * loss).sum(), log_prob)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


def test_in_range_it_is_exp_to_the_bit() -> None:
    log_ratio = torch.linspace(-120, LARGEST_LOG_RATIO, 5001, requires_grad=True)
    ratio, plain = ratio_of(log_ratio), log_ratio.exp()
    weight = torch.linspace(-3, 3, 5001)
    assert torch.equal(ratio, plain)
    (found,) = torch.autograd.grad((ratio * weight).sum(), log_ratio)
    (expected,) = torch.autograd.grad((plain * weight).sum(), log_ratio)
    assert torch.equal(found, expected)


def test_above_it_a_bad_action_still_learns() -> None:
    log_ratio = torch.tensor([LARGEST_LOG_RATIO, 100.0], requires_grad=True)
    ratio = ratio_of(log_ratio)
    (gradient,) = torch.autograd.grad(ratio.sum(), log_ratio)
    assert ratio[1] > ratio[0]
    assert gradient[1] == gradient[0] == ratio[0]


def test_a_ground_truth_row_does_not_hear_of_the_policy_s_ratio() -> None:
    """Its policy loss is computed and not taken: 0 times an infinite gradient would be NaN."""
    log_prob = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -101.0], [-1.0, -1.0]])
    config = AlgorithmConfig.model_validate(
        {"beta": 0.0, "ground_truth": {"importance": "probability"}}
    )
    terms = Grpo(config, (0.2, 0.2), Comparison(config)).loss(
        Replay(log_prob=log_prob, statistics={}),
        old,
        torch.ones(2, 1),
        truth=torch.tensor([True, False]),
    )
    (gradient,) = torch.autograd.grad(terms.loss.sum(), log_prob)
    assert gradient.isfinite().all()
    assert (gradient[0] == gradient[0, 0]).all()
