"""The share of an update that 16 bit keeps, against values worked out by hand."""

import pytest
import torch

from atelier.export.survival import UpdateSurvival


def survival_of(base: list[float], update: list[float], dtype: torch.dtype) -> UpdateSurvival:
    survival = UpdateSurvival()
    before = torch.tensor(base)
    survival.add(before, before + torch.tensor(update), dtype)
    return survival


def test_an_update_that_16_bit_represents_survives_whole() -> None:
    survival = survival_of([1.0, 1.0], [0.5, -0.25], torch.bfloat16)
    assert survival.share == 1
    assert survival.changed == 1


def test_half_the_grid_is_lost_and_the_share_is_by_norm() -> None:
    # Near 1 the grid of bfloat16 is 2^-7 above: 3 * 2^-7 is kept, 2^-9 is rounded away.
    survival = survival_of([1.0, 1.0], [3 * 2**-7, 2**-9], torch.bfloat16)
    lost, update = 2**-9, ((3 * 2**-7) ** 2 + (2**-9) ** 2) ** 0.5
    assert survival.share == pytest.approx(1 - lost / update)
    assert survival.changed == 0.5


def test_an_update_under_the_grid_does_not_survive() -> None:
    survival = survival_of([1.0] * 4, [2**-10] * 4, torch.bfloat16)
    assert survival.share == 0
    assert survival.changed == 0


def test_rounding_noise_on_a_finer_base_does_not_pass_for_the_update() -> None:
    """The projection of the noise on the update is about 1 here; the share is not."""
    generator = torch.Generator().manual_seed(0)
    base = 1 + torch.rand(100_000, generator=generator) / 2
    update = torch.full_like(base, 2**-11)
    survival = UpdateSurvival()
    survival.add(base, base + update, torch.bfloat16)
    applied = (base + update).bfloat16().float() - base.bfloat16().float()
    assert float((applied @ update) / (update @ update)) == pytest.approx(1, abs=0.1)
    assert survival.share == 0
    assert survival.changed == pytest.approx(2**-4, rel=0.2)


def test_no_update_is_no_survival() -> None:
    assert UpdateSurvival().share == 0
    assert UpdateSurvival().changed == 0
