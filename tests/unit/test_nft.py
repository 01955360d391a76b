"""DiffusionNFT against golden values, and on a linear toy."""

import pytest
import torch

from atelier.algorithms.nft import Nft, behaviour_decay, nft_loss, optimality
from atelier.config.schema import RunConfig
from atelier.dynamics.transitions import noised
from atelier.policies.base import Replay


def scalar(value: float) -> torch.Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("strength", "advantage", "good", "policy"),
    [(1.0, 1.0, 0.6, 0.66), (1.0, -1.0, 0.4, 0.54), (0.1, 2.5, 0.75, 3.3)],
)
def test_golden_loss(strength: float, advantage: float, good: float, policy: float) -> None:
    clean, level = scalar(0.5), torch.tensor([0.6], dtype=torch.float64)
    noisy = noised(clean, scalar(-1.0), level)
    assert noisy.item() == pytest.approx(-0.4)
    weight = optimality(torch.tensor([advantage], dtype=torch.float64))
    assert weight.item() == pytest.approx(good)
    loss = nft_loss(scalar(-1.2), scalar(-1.4), clean, noisy, level, weight, strength)
    assert loss.item() == pytest.approx(policy, abs=2e-6)
    with_kl = loss.item() + 1e-4 * (-1.2 + 1.3) ** 2
    assert with_kl == pytest.approx(policy + 1e-6, abs=2e-6)


def test_golden_behaviour_decay() -> None:
    assert [behaviour_decay("ramp", step) for step in (100, 600)] == pytest.approx([0.1, 0.5])
    late = [behaviour_decay("late_ramp", step) for step in (75, 76, 208, 209)]
    assert late == pytest.approx([0, 0.0075, 0.9975, 0.999])
    assert behaviour_decay("follow", 10_000) == 0


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("all", [0, 0.4, 0.5, 0.7, 1]),
        ("positive_only", [0.5, 0.5, 0.5, 0.7, 1]),
        ("negative_only", [0, 0.4, 0.5, 0.5, 0.5]),
        ("one_only", [0.5, 0.5, 0.5, 0.6, 0.6]),
        ("binary", [0.4, 0.4, 0.5, 0.6, 0.6]),
    ],
)
def test_which_advantages_count(use: str, expected: list[float]) -> None:
    advantages = torch.tensor([-9.0, -1.0, 0.0, 2.0, 7.0])
    assert optimality(advantages, use=use).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("strength", [1.0, 0.1])
def test_the_gradient_restores_good_images_and_avoids_bad_ones(strength: float) -> None:
    """At the behaviour policy both errors are equal, so the gradient is (2 r - 1) times that of
    restoring the image: closed form for an error e = x_t - t v - x0 in one dimension,
    d/dv = -5 (2 r - 1) 2 e t / |e|."""
    clean, level = scalar(0.5), torch.tensor([0.6], dtype=torch.float64)
    noisy = noised(clean, scalar(-1.0), level)
    old = scalar(-1.4)
    error = (noisy - 0.6 * old - clean).item()
    for good in (0.0, 0.3, 0.5, 1.0):
        velocity = old.clone().requires_grad_()
        weight = torch.tensor([good], dtype=torch.float64)
        loss = nft_loss(velocity, old, clean, noisy, level, weight, strength)
        (gradient,) = torch.autograd.grad(loss.sum(), velocity)
        expected = -5 * (2 * good - 1) * 2 * error * 0.6 / abs(error)
        assert gradient.item() == pytest.approx(expected)


def test_samples_are_weighed_each_on_its_own() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(3, 2, 4, dtype=torch.float64) for _ in range(4)]
    level, good = torch.tensor([0.2, 0.5, 0.9]), torch.tensor([0.1, 0.5, 1.0])
    together = nft_loss(*parts, level, good, 0.5)
    alone = [
        nft_loss(*(part[i : i + 1] for part in parts), level[i : i + 1], good[i : i + 1], 0.5)
        for i in range(3)
    ]
    assert torch.allclose(together, torch.cat(alone))


# The algorithm of a run ---------------------------------------------------------------------------


def nft(**settings) -> Nft:
    return Nft.of(RunConfig.model_validate({"algorithm": {"name": "nft", **settings}}))


def replay(velocity: torch.Tensor, behaviour: torch.Tensor, **more: torch.Tensor) -> Replay:
    """One dimension, the golden x0 = 0.5 noised by -1 to 0.6."""
    ones = torch.ones_like(behaviour)
    known = {"clean": 0.5 * ones, "noisy": -0.4 * ones, "level": 0.6 * ones[..., 0]}
    return Replay(None, {"velocity": velocity, "behaviour_velocity": behaviour, **known, **more})


def test_the_loss_of_a_run_is_the_golden_one_with_its_kl() -> None:
    algorithm = nft(beta=1e-4, kl="velocity", nft={"strength": 1.0})
    old, reference = torch.full((2, 1, 1), -1.4), torch.full((2, 1, 1), -1.3)
    velocity = torch.full((2, 1, 1), -1.2, requires_grad=True)
    said = replay(velocity, old, reference_velocity=reference)
    terms = algorithm.loss(said, None, torch.tensor([[1.0], [-1.0]]))
    assert terms.loss.flatten().tolist() == pytest.approx([0.660001, 0.540001], abs=2e-6)
    assert terms.drift.flatten().tolist() == pytest.approx([0.2 / 1.4] * 2)
    terms.loss.sum().backward()
    assert velocity.grad is not None
    assert velocity.grad.abs().min() > 0


def test_several_levels_at_once_are_each_their_own() -> None:
    algorithm = nft()
    old = torch.full((2, 3, 1), -1.4)
    velocity = torch.tensor([[-1.2, -1.3, -1.4], [-1.0, -1.2, -1.6]])[..., None]
    advantages = torch.tensor([[1.0], [-1.0]])
    together = algorithm.loss(replay(velocity, old), None, advantages)
    for action in range(3):
        part = slice(action, action + 1)
        alone = algorithm.loss(replay(velocity[:, part], old[:, part]), None, advantages)
        assert torch.equal(alone.loss, together.loss[:, part])
        assert torch.equal(alone.drift, together.drift[:, part])


def test_the_sampling_policy_follows_as_its_schedule_says() -> None:
    assert not nft(nft={"behaviour": "follow"}).keeps_behaviour
    ramp = nft(nft={"behaviour": "ramp"})
    assert ramp.keeps_behaviour
    assert ramp.behaviour_decay(100) == pytest.approx(0.1)
