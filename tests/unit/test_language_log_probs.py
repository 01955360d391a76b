"""Forms of log-probs of text, and keyed draws."""

from __future__ import annotations

import math

import pytest
import torch

from atelier.policies.language.draws import cumulative, token_at, uniforms
from atelier.policies.language.log_probs import (
    DrawnForm,
    TextForm,
    TokenSampler,
    kept,
    text_log_probs,
    within,
)


def test_ties_at_the_edge_are_kept() -> None:
    found = kept(torch.tensor([[3.0, 1.0, 1.0, 0.0]]), top_k=2, top_p=1)
    assert found is not None
    assert found.tolist() == [[True, True, True, False]]


def test_text_counts_the_full_vocabulary_or_only_the_permitted_first_tokens() -> None:
    logits = torch.tensor([[[1.0, 0.0, 2.0], [1.0, 0.0, 2.0]]])
    targets = torch.tensor([[0, 0]])
    full = logits[0, 0].log_softmax(0)[0]
    published = text_log_probs(logits, targets, TextForm())
    restricted = text_log_probs(logits, targets, TextForm(first_tokens=(0, 1)))
    later = text_log_probs(logits, targets, TextForm(first_tokens=(0, 1)), start=3)
    torch.testing.assert_close(published, full.expand(1, 2))
    assert float(restricted[0, 0]) == pytest.approx(-math.log(1 + math.exp(-1)), abs=1e-6)
    assert float(restricted[0, 1]) == pytest.approx(float(full))
    torch.testing.assert_close(later, published)
    cold = text_log_probs(logits, targets, TextForm(temperature=0.5))
    torch.testing.assert_close(cold, (2 * logits[0, 0]).log_softmax(0)[0].expand(1, 2))


def test_what_was_drawn_from_lacks_what_is_never_drawn_and_what_is_unlikely() -> None:
    logits = torch.tensor([[[3.0, 1.0, 2.0, 0.0]]])
    form = DrawnForm(TokenSampler(temperature=0.5, top_k=2), never=(0,))
    within = text_log_probs(logits, torch.tensor([[2]]), form)
    assert float(within) == pytest.approx(-math.log(1 + math.exp(-2)), abs=1e-6)
    # A target that is not drawn stays, so that a ratio is a number, on padding too.
    unlikely = text_log_probs(logits, torch.tensor([[3]]), form)
    assert float(unlikely) == pytest.approx(-math.log(1 + math.exp(2) + math.exp(4)), abs=1e-6)
    mark = text_log_probs(logits, torch.tensor([[0]]), form)
    assert float(mark) == pytest.approx(-math.log(1 + math.exp(-2) + math.exp(-4)), abs=1e-6)


@pytest.mark.parametrize("settings", [{}, {"top_k": 9}, {"top_p": 0.999}])
def test_what_is_never_drawn_is_not_drawn_where_all_else_is(settings: dict[str, float]) -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]])
    found = within(logits, TokenSampler(**settings), never=(0, 2))  # type: ignore[arg-type]
    assert found.isfinite().tolist() == [[False, True, False, True]]


# Draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 1000])
def test_prefix_sums(size: int) -> None:
    values = torch.rand(3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(cumulative(values), values.cumsum(-1), atol=1e-12, rtol=0)


def test_uniforms_depend_on_key_and_place_alone() -> None:
    long = uniforms([7, 2**64 - 1, 3], 40)
    torch.testing.assert_close(uniforms([3], 8)[0], long[2, :8], atol=0, rtol=0)
    assert len(long.unique()) == long.numel()
    assert bool(((long >= 0) & (long < 1)).all())


def test_a_draw_is_where_the_cumulative_distribution_passes() -> None:
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(5, 3)
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.76, 1 - 2**-53], dtype=torch.float64)
    assert token_at(logits, uniform).tolist() == [0, 0, 1, 2, 2]


def test_what_cannot_be_drawn_is_not_even_at_the_ends() -> None:
    logits = torch.full((2, 300), -torch.inf)
    logits[:, 100:200] = torch.randn(100, generator=torch.Generator().manual_seed(0))
    found = token_at(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64))
    assert found.tolist() == [100, 199]


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    draws = token_at(logits.expand(20_000, 4), uniforms([5], 20_000)[0])
    share = draws.bincount(minlength=4) / len(draws)
    torch.testing.assert_close(share, logits.softmax(0), atol=0.01, rtol=0)
