"""Which numbers are laid onto a checkpoint of fine-tuning, and which are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atelier.errors import ConfigError
from atelier.export.deepgen.sft import laid_onto

TRANSFORMER, CONNECTOR = "transformer.proj_out.weight", "projector_1.weight"
ADAPTER = "lmm.x.lora_A.default.weight"


def weights(
    connector: Tensor | None = None, transformer: Tensor | None = None
) -> dict[str, Tensor]:
    return {
        TRANSFORMER: torch.ones(2, 2) if transformer is None else transformer,
        CONNECTOR: torch.ones(2, 2) if connector is None else connector,
    }


def checkpoint(connector: Tensor | None = None, **more: Tensor) -> dict[str, Tensor]:
    return {**weights(connector), ADAPTER: torch.ones(1), **more}


def full(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((2, 2), value, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_real_numbers_keep_the_dtype_of_the_checkpoint(dtype: torch.dtype) -> None:
    laid = laid_onto("sft.pth", weights(full(0.5)), checkpoint(full(1, dtype))).state
    assert laid[CONNECTOR].dtype == dtype
    assert (laid[CONNECTOR].float() == 0.5).all()


REFUSED = {
    "inf": (weights(full(float("inf"))), checkpoint(), f"laid onto sft.pth: {CONNECTOR} has value"),
    "nan": (
        weights(transformer=full(float("nan"))),
        checkpoint(),
        rf"laid onto sft.pth: {TRANSFORMER} has values that are no numbers \(NaN",
    ),
    "complex": (
        weights(full(1, torch.complex64)),
        checkpoint(),
        f"laid onto sft.pth: {CONNECTOR} is stored as complex64",
    ),
    "too narrow": (
        weights(full(1e6)),
        checkpoint(full(1, torch.float16)),
        f"sft.pth: {CONNECTOR} is float16 there, which ends at 65504",
    ),
    "too narrow, of a byte": (
        weights(full(1e6)),
        checkpoint(full(1, torch.float8_e4m3fn)),
        f"sft.pth: {CONNECTOR} is float8_e4m3fn there, which ends at 448",
    ),
    "whole numbers there": (
        weights(),
        checkpoint(full(1, torch.int8)),
        f"sft.pth: {CONNECTOR} is stored as int8",
    ),
    "truth values there": (
        weights(),
        checkpoint(full(1, torch.bool)),
        f"sft.pth: {CONNECTOR} is stored as bool",
    ),
    "nan there": (
        weights(),
        checkpoint(**{TRANSFORMER: full(float("nan"))}),
        f"sft.pth: {TRANSFORMER} has values that are no numbers",
    ),
    "nan kept": (
        weights(),
        checkpoint(**{ADAPTER: full(float("nan"))}),
        f"{ADAPTER} has values that are no numbers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_real_number_is_refused(case: str) -> None:
    own, theirs, says = REFUSED[case]
    with pytest.raises(ConfigError, match=says):
        laid_onto("sft.pth", own, theirs)
