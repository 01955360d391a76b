"""Small random transformers of Stable Diffusion 3's kinds."""

from __future__ import annotations

from typing import Literal

import torch
from diffusers import SD3Transformer2DModel
from diffusers.models.normalization import RMSNorm
from torch import Tensor

from tests.support.random_deepgen import build_dual_transformer, build_transformer

Kind = Literal["sd3", "sd35"]
TOKENS = 5  # of its text


def build(kind: Kind, seed: int = 8) -> SD3Transformer2DModel:
    """sd35: with a norm of queries and keys, and a first block that attends to the image twice.
    sd3: without either. Weights so large that everything depends on everything."""
    if kind == "sd35":
        return _with_other_norms(build_dual_transformer(seed))
    return build_transformer(seed)


def _with_other_norms(transformer: SD3Transformer2DModel) -> SD3Transformer2DModel:
    """Weights of norms begin as ones, which nobody would miss."""
    generator = torch.Generator().manual_seed(0)
    for one in transformer.modules():
        if isinstance(one, RMSNorm):
            one.weight.data = 1 + 0.3 * torch.randn(one.weight.shape, generator=generator)
    return transformer


def inputs(batch: int = 3, tokens: int = TOKENS) -> dict[str, Tensor]:
    """What its forward is called with."""
    generator = torch.Generator().manual_seed(0)
    return {
        "hidden_states": torch.randn(batch, 4, 16, 16, generator=generator),
        "timestep": torch.linspace(900, 20, batch),
        "encoder_hidden_states": torch.randn(batch, tokens, 12, generator=generator),
        "pooled_projections": torch.randn(batch, 10, generator=generator),
    }
