"""Transitions against golden values and identities."""

import math

import pytest
import torch

from atelier.config.log_probs import USUAL_LOG_PROBS
from atelier.config.sections.rollout import WindowConfig
from atelier.dynamics.log_probs import LOG_PROBS
from atelier.dynamics.schedules import sd3
from atelier.dynamics.transitions import TRANSITIONS, Step, cps, flow_sde, ode, steps_of
from atelier.dynamics.windows import draw_window

STEPS = steps_of([1.0, 0.8, 0.5, 0.0])
X = torch.tensor([[0.5, -1.0]], dtype=torch.float64)
V = torch.tensor([[-0.3, 0.6]], dtype=torch.float64)
X_NEXT = torch.tensor([[1.0, -0.5]], dtype=torch.float64)

GOLDEN = {
    # kind, noise level: (mean, std, log-prob) of each step
    ("flow_sde", 0.7): [
        ((0.4375, -0.875), 0.7, -0.795443),
        ((0.4283, -0.8566), 0.766812, -0.846453),
        ((0.56425, -1.1285), 0.494975, -0.812517),
    ],
    ("cps", 0.8): [
        ((0.283607, -0.567214), 0.760845, -0.258868),
        ((0.437984, -0.875967), 0.475528, -0.228607),
        ((0.65, -1.3), 0.0, -0.381250),
    ],
    ("dance_sde", 0.3): [
        ((0.5555, -1.111), 0.134164, -6.839431),
        ((0.582575, -1.16515), 0.164317, -4.822870),
        ((0.63425, -1.2685), 0.212132, -3.392644),
    ],
    ("wan_sde", 1.0): [
        ((0.528, -1.056), 0.357771, -0.929982),
        ((0.556208, -1.112416), 0.350542, -1.034412),
        ((0.622, -1.244), 0.282843, -1.832387),
    ],
}


@pytest.mark.parametrize(("kind", "noise_level"), GOLDEN)
@pytest.mark.parametrize("index", range(3))
def test_golden_transitions(kind: str, noise_level: float, index: int) -> None:
    mean, std, log_prob = GOLDEN[kind, noise_level][index]
    transition = TRANSITIONS[kind](X, V, STEPS[index], noise_level)
    assert transition.mean[0].tolist() == pytest.approx(mean, abs=1e-6)
    assert transition.std == pytest.approx(std, abs=1e-6)
    form = LOG_PROBS[USUAL_LOG_PROBS[kind]].function
    assert form(X_NEXT, transition, X).item() == pytest.approx(log_prob, abs=1e-6)


@pytest.mark.parametrize("index", range(3))
def test_without_noise_every_kind_is_the_euler_step(index: int) -> None:
    golden = [(0.56, -1.12), (0.59, -1.18), (0.65, -1.3)][index]
    step = STEPS[index]
    assert ode(X, V, step)[0].tolist() == pytest.approx(golden, abs=1e-12)
    for kind in TRANSITIONS.values():
        transition = kind(X, V, step, 0.0)
        assert transition.std == 0
        assert torch.allclose(transition.mean, ode(X, V, step))


def test_first_flow_sde_step_injects_exactly_the_noise_level() -> None:
    for noise_level in (0.3, 0.7, 1.2):
        assert flow_sde(X, V, STEPS[0], noise_level).std == pytest.approx(noise_level)


@pytest.mark.parametrize("noise_level", [0.0, 0.4, 0.8, 1.0])
def test_cps_keeps_the_noise_coefficient(noise_level: float) -> None:
    """s^2 + (coefficient of eps_hat)^2 = sigma_next^2."""
    for step in STEPS:
        std = cps(X, V, step, noise_level).std
        assert std == pytest.approx(step.sigma_next * math.sin(noise_level * math.pi / 2))
        # With x0_hat = 0, the mean is the coefficient times eps_hat.
        noise = torch.ones(1, 1, dtype=torch.float64)
        x, velocity = step.sigma * noise, noise
        kept = cps(x, velocity, step, noise_level).mean.item()
        assert std**2 + kept**2 == pytest.approx(step.sigma_next**2)


def test_dance_is_flow_sde_with_a_constant_diffusion() -> None:
    for step in STEPS:
        divisor = 1 - (step.first_sigma_next if step.sigma == 1 else step.sigma)
        diffusion = 0.7 * math.sqrt(step.sigma / divisor)
        dance = TRANSITIONS["dance_sde"](X, V, step, diffusion)
        flow = flow_sde(X, V, step, 0.7)
        assert torch.equal(dance.mean, flow.mean)
        assert dance.std == flow.std
        assert (dance.kl_std, flow.kl_std) == (dance.std, diffusion)


def test_cps_keeps_the_noise_of_the_gaussian_toy_where_it_is_high() -> None:
    """Std of the latents after each step, data of std .5, exact posterior velocity."""
    variance, stds = 1.0, []
    for step in steps_of(sd3(10)):
        sigma = step.sigma
        posterior = (1 - sigma) * 0.25 / ((1 - sigma) ** 2 * 0.25 + sigma**2)
        x = torch.ones(1, 1, dtype=torch.float64)
        transition = cps(x, (x - posterior * x) / sigma, step, 0.8)
        variance = variance * transition.mean.item() ** 2 + transition.std**2
        stds.append(math.sqrt(variance))
    assert stds[:3] == pytest.approx([0.960, 0.914, 0.859], abs=1e-3)
    assert (stds[5], stds[6]) == pytest.approx((0.712, 0.491), abs=0.25)
    assert stds[-1] == pytest.approx(0.308, abs=1e-3)


def test_step_gradients_flow_through_the_velocity_only() -> None:
    """d mean / d v: (1 + a^2/2) dt below sigma = 1, exactly dt at sigma = 1."""
    for index, factor in ((0, 1.0), (1, 1 + 0.7**2 / 2)):
        velocity = V.clone().requires_grad_()
        transition = flow_sde(X, velocity, STEPS[index], 0.7)
        (gradient,) = torch.autograd.grad(transition.mean.sum(), velocity)
        assert gradient[0].tolist() == pytest.approx([factor * STEPS[index].dt] * 2)


def test_windows_stay_inside_and_move() -> None:
    config = WindowConfig(strategy="fast", size=2)
    windows = [draw_window(config, 8, seed=1, step=step) for step in range(200)]
    assert {window[0] for window in windows} == {0, 1, 2}
    assert all(len(window) == 2 for window in windows)
    assert windows == [draw_window(config, 8, seed=1, step=step) for step in range(200)]
    other = [draw_window(config, 8, seed=2, step=step) for step in range(200)]
    assert windows != other


def test_a_window_of_all_steps_is_the_full_rollout() -> None:
    full = draw_window(WindowConfig(strategy="all"), 8, seed=1, step=5)
    fast = WindowConfig(strategy="fast", size=7, range=(0, 7))
    assert full == draw_window(fast, 8, seed=1, step=5) == tuple(range(7))


def test_step_keeps_the_second_sigma() -> None:
    assert {step.first_sigma_next for step in STEPS} == {0.8}
    assert STEPS[1] == Step(0.8, 0.5, 0.8)
