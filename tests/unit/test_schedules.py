"""Schedules and the solver of compressed tails against golden values."""

import math
from itertools import pairwise

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from hypothesis import given
from hypothesis import strategies as st

from atelier.config.sections.rollout import RolloutConfig
from atelier.dynamics.schedules import (
    compressed,
    exponential_shift,
    linear_shift,
    resolution_mu,
    sd3,
    shifted,
    tail_levels,
    unshifted,
)
from atelier.dynamics.solvers import CleanEstimate, dpm_solver
from atelier.dynamics.transitions import Step, flow_sde, ode, steps_of
from atelier.policies.flow.denoising import denoised, guided_velocity
from atelier.policies.flow.schedules import Schedule, Schedules, schedule_of

WINDOW = [1, 0.986301, 0.971831, 0.956522]


def test_golden_sd3() -> None:
    golden = [1, 0.960129, 0.913349, 0.857692, 0.790368, 0.707278]
    golden += [0.602151, 0.464876, 0.278049, 0.008929, 0]
    assert sd3(10) == pytest.approx(golden, abs=1e-6)


@pytest.mark.parametrize(("num_steps", "shift"), [(4, 3.0), (10, 3.0), (28, 1.0), (40, 5.0)])
def test_sd3_is_what_diffusers_makes(num_steps: int, shift: float) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(num_steps)
    assert sd3(num_steps, shift) == pytest.approx(scheduler.sigmas.tolist(), abs=1e-6)


def test_golden_linear_shift() -> None:
    assert linear_shift(4, 3) == pytest.approx([1, 0.9, 0.75, 0.5, 0])


@given(st.floats(0.1, 100), st.integers(2, 60))
def test_levels_begin_at_one_exactly_and_end_at_zero(shift: float, num_steps: int) -> None:
    """A level beside 1 is no first level for flow_sde: its noise would be divided by the gap."""
    for levels in (
        linear_shift(num_steps, shift),
        sd3(num_steps, shift),
        exponential_shift(num_steps, math.log(shift)),
    ):
        assert (levels[0], levels[-1]) == (1.0, 0.0)
        assert all(a > b for a, b in pairwise(levels))


@pytest.mark.parametrize("tokens", [16, 64, 256, 576, 1024, 1296, 4096])
def test_the_first_noise_of_flow_sde_is_its_level(tokens: int) -> None:
    step = steps_of(exponential_shift(8, resolution_mu(tokens)))[0]
    x = torch.zeros(1, 1, 1, 1)
    assert flow_sde(x, x, step, 0.7).std == pytest.approx(0.7)


def test_golden_flux() -> None:
    mu = resolution_mu(1024)
    assert mu == pytest.approx(0.63)
    golden = [1, 0.9037, 0.7897, 0.6525, 0.4842, 0.2730, 0]
    assert exponential_shift(6, mu) == pytest.approx(golden, abs=1e-4)


def test_a_terminal_shift_stretches_to_its_last_level() -> None:
    plain, stretched = exponential_shift(8, 0.7), exponential_shift(8, 0.7, terminal=0.02)
    assert stretched[0] == 1
    assert stretched[-2:] == pytest.approx([0.02, 0])
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.02)
    scheduler.set_timesteps(sigmas=[1 - i / 8 for i in range(8)], mu=0.7)
    assert stretched == pytest.approx(scheduler.sigmas.tolist(), abs=1e-6)
    assert all(a >= b for a, b in zip(plain, stretched, strict=True))


@given(st.floats(0, 1), st.floats(0.5, 8))
def test_unshifted_is_the_inverse(sigma: float, shift: float) -> None:
    assert unshifted(shifted(sigma, shift), shift) == pytest.approx(sigma, abs=1e-9)


@pytest.mark.parametrize(
    ("ratio", "tail"),
    [
        (0.4, [0.940299, 0.885246, 0.818182, 0.734694, 0.627907, 0.486486, 0.290323, 0]),
        (0.2, [0.940299, 0.792453, 0.538462, 0]),
    ],
)
def test_golden_compressed_tail(ratio: float, tail: list[float]) -> None:
    sigmas = compressed(linear_shift(25, 3), last=3, ratio=ratio, shift=3)
    assert sigmas == pytest.approx([*WINDOW, *tail], abs=1e-6)
    assert len(sigmas) - 1 == {0.4: 11, 0.2: 7}[ratio]


def test_a_tail_always_ends_at_zero() -> None:
    for last in range(24):
        sigmas = compressed(linear_shift(25, 3), last, ratio=0.2, shift=3)
        assert sigmas[-1] == 0
        assert all(a > b for a, b in pairwise(sigmas))
    assert tail_levels(25, 23, 0.2) == 2


def _solve(sigma: float, sigma_next: float, before: CleanEstimate | None) -> float:
    """x = .5 with x0_hat = .2."""
    x = torch.tensor([0.5], dtype=torch.float64)
    velocity = (x - 0.2) / sigma
    return dpm_solver(x, velocity, Step(sigma, sigma_next, 0.9), before).item()


def test_golden_dpm_solver() -> None:
    earlier = CleanEstimate(0.9, torch.tensor([0.1], dtype=torch.float64))
    assert _solve(0.8, 0.5, None) == pytest.approx(0.3875, abs=1e-6)
    assert _solve(0.8, 0.5, earlier) == pytest.approx(0.419553, abs=1e-6)
    assert _solve(1.0, 0.8, None) == pytest.approx(0.44, abs=1e-6)
    at_one = CleanEstimate(1.0, torch.tensor([0.1], dtype=torch.float64))
    assert _solve(0.8, 0.5, at_one) == pytest.approx(0.3875, abs=1e-6)
    assert _solve(0.5, 0.0, earlier) == pytest.approx(0.2, abs=1e-6)


def test_first_order_is_the_euler_step_and_second_order_is_closer() -> None:
    """Gaussian data with std .5: the posterior velocity is known, and that x goes as the std."""

    def variance(sigma: float) -> float:
        return (1 - sigma) ** 2 * 0.25 + sigma**2

    def velocity(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return (x - (1 - sigma) * 0.25 / variance(sigma) * x) / sigma

    x = torch.tensor([1.0], dtype=torch.float64)
    steps = steps_of(linear_shift(20, 3))[:-1]
    first = dpm_solver(x, velocity(x, 1.0), steps[0], None)
    assert torch.allclose(first, ode(x, velocity(x, 1.0), steps[0]))

    euler, second, before = x, x, None
    for step in steps:
        euler = ode(euler, velocity(euler, step.sigma), step)
        flow = velocity(second, step.sigma)
        estimate = CleanEstimate(step.sigma, second - step.sigma * flow)
        second = dpm_solver(second, flow, step, before)
        before = estimate
    exact = math.sqrt(variance(steps[-1].sigma_next))
    assert abs(second.item() - exact) < abs(euler.item() - exact) / 4


# What a configuration asks for -------------------------------------------------------------------


def schedule(window: range, tokens: int = 1024, **settings) -> Schedule:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    config = RolloutConfig(**settings)
    return Schedules(scheduler, config, torch.device("cpu"), tokens).rollout(window)


def levels(made: Schedule) -> list[float]:
    return [made.steps[0].sigma, *(step.sigma_next for step in made.steps)]


def test_larger_images_have_higher_levels() -> None:
    settings = {"num_inference_steps": 6, "schedule": "resolution_shift"}
    small, large = (levels(schedule(range(2), tokens, **settings)) for tokens in (1024, 4096))
    assert small == pytest.approx(exponential_shift(6, 0.63))
    assert all(a >= b for a, b in zip(large, small, strict=True))
    stretched = levels(schedule(range(2), lowest_level=0.02, **settings))
    assert stretched[-2:] == pytest.approx([0.02, 0])


@pytest.mark.parametrize("kind", ["scheduler", "linear_shift", "resolution_shift"])
def test_a_tail_begins_behind_the_window_of_every_schedule(kind: str) -> None:
    settings = {"num_inference_steps": 12, "schedule": kind}
    whole = levels(schedule(range(2, 5), **settings))
    short = schedule(range(2, 5), tail=0.4, **settings)
    assert levels(short)[:6] == pytest.approx(whole[:6])
    assert short.tail == 5
    assert len(short.steps) == 5 + tail_levels(12, 4, 0.4) - 1
    assert levels(short)[-1] == 0
    assert torch.allclose(
        short.timesteps, torch.tensor([1000 * step.sigma for step in short.steps])
    )


BY_SIZE = {
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 1.16,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}


@pytest.mark.parametrize("kind", ["exponential", "linear"])
def test_a_scheduler_that_shifts_by_size_shifts_pictures_and_tails_alike(kind: str) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(**BY_SIZE, time_shift_type=kind)
    config = RolloutConfig(num_inference_steps=12, tail=0.4, window={"size": 3})
    made = Schedules(scheduler, config, torch.device("cpu"), 1024)
    scheduler.set_timesteps(4, mu=resolution_mu(1024, max_shift=1.16))
    even = torch.linspace(1, scheduler.sigma_min, 4).tolist()
    found = [shifted(level, made.training_shift) for level in even]
    assert found == pytest.approx(scheduler.sigmas[:-1].tolist(), abs=1e-6)
    tail = levels(made.rollout(range(2, 5)))[5:]
    spaced = [unshifted(level, made.training_shift) for level in tail]
    gaps = [before - after for before, after in pairwise(spaced)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps), abs=1e-9)


def test_a_straight_way_is_denoised_to_its_end() -> None:
    """By a velocity that is noise - image throughout; and it is asked at the scheduler's times."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    schedule, asked = schedule_of(scheduler, 5, torch.device("cpu")), []
    noise, image = torch.randn(2, 3), torch.randn(2, 3)

    def velocity(x: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        asked.append(timestep.item())
        return noise - image

    assert torch.allclose(denoised(noise, schedule, velocity), image, atol=1e-6)
    scheduler.set_timesteps(5)
    assert asked == scheduler.timesteps.tolist()
    assert torch.equal(guided_velocity(noise, image, 1.0), noise + (image - noise))
    assert torch.allclose(guided_velocity(noise, image, 3.0), 3 * image - 2 * noise, atol=1e-6)
