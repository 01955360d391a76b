"""Forms of log-probs of image tokens, with golden values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from atelier.policies.janus.log_probs import (
    FormName,
    ImageForm,
    Sampler,
    guided_logits,
    image_log_probs,
    is_guided,
    sampler_logits,
)

CONDITIONAL = torch.tensor([2.0, 0.0, -1.0])
UNCONDITIONAL = torch.tensor([1.0, 0.5, -2.0])


def log_probs(name: FormName, sampler: Sampler) -> Tensor:
    rows = (CONDITIONAL.expand(3, 3), UNCONDITIONAL.expand(3, 3))
    return image_log_probs(*rows, torch.arange(3), ImageForm(name, sampler))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cfg_tempered", (-0.560020, -2.160020, -1.160020)),
        ("sampler", (-0.048907, -8.048907, -3.048907)),
        ("conditional", (-0.169846, -2.169846, -3.169846)),
    ],
)
def test_golden_1(name: FormName, expected: tuple[float, ...]) -> None:
    found = log_probs(name, Sampler(guidance_scale=5))
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_golden_1_of_guided_logits() -> None:
    assert guided_logits(CONDITIONAL, UNCONDITIONAL, 5).tolist() == [6.0, -2.0, 3.0]


def test_the_published_form_is_the_sampler_at_the_temperature_of_the_guidance_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = (torch.randn(4, 50, generator=generator), torch.randn(4, 50, generator=generator))
    targets = torch.tensor([3, 0, 49, 7])
    tempered = image_log_probs(*rows, targets, ImageForm("cfg_tempered", Sampler(5)))
    sampled = image_log_probs(*rows, targets, ImageForm("sampler", Sampler(5, temperature=5)))
    torch.testing.assert_close(tempered, sampled, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["cfg_tempered", "sampler", "conditional"])
def test_without_guidance_all_forms_are_one(name: FormName) -> None:
    form = ImageForm(name, Sampler(guidance_scale=1))
    assert not is_guided(form)
    found = image_log_probs(CONDITIONAL[None], None, torch.tensor([1]), form)
    assert float(found) == pytest.approx(-2.169846, abs=1e-6)


def test_logits_of_16_bits_are_made_float32_before_they_are_combined() -> None:
    rows = (CONDITIONAL.bfloat16()[None], UNCONDITIONAL.bfloat16()[None])  # all of them exact
    found = image_log_probs(*rows, torch.tensor([0]), ImageForm(sampler=Sampler(5)))
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(-0.560020, abs=1e-6)


def test_temperature_top_k_and_top_p_shape_the_sampler_form() -> None:
    logits = torch.tensor([[math.log(value) for value in (0.5, 0.25, 0.15, 0.1)]])

    def probabilities(**settings: float) -> list[float]:
        found = sampler_logits(logits, None, Sampler(**settings), targets=None)  # type: ignore[arg-type]
        return found.softmax(-1)[0].tolist()

    assert probabilities(top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert probabilities(top_p=0.5) == pytest.approx([1, 0, 0, 0])
    assert probabilities(top_p=0.51) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    # top_p is of what top_k leaves: 2/3 and 1/3.
    assert probabilities(top_k=2, top_p=0.6) == pytest.approx([1, 0, 0, 0])
    squared = [value**2 for value in (0.5, 0.25, 0.15, 0.1)]
    assert probabilities(temperature=0.5) == pytest.approx([one / sum(squared) for one in squared])


def test_a_target_outside_of_what_is_drawn_keeps_a_finite_log_prob_and_a_gradient() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    form = ImageForm("sampler", Sampler(top_k=1))
    found = image_log_probs(logits, None, torch.tensor([2]), form)
    assert found.item() == pytest.approx(-math.log(1 + math.exp(2)), abs=1e-6)
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert float(logits.grad[0, 1]) == 0


@pytest.mark.parametrize(
    "settings",
    [{"guidance_scale": 0.0}, {"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}],
)
def test_impossible_samplers_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"have to be|has to be"):
        Sampler(**settings)  # type: ignore[arg-type]
