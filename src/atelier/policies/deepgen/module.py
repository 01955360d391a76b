"""What is trained: the transformer, and the connector with it where that is asked for."""

from __future__ import annotations

import torch
from diffusers import SD3Transformer2DModel
from torch import Tensor, nn

from atelier.policies.deepgen.conditions import Conditions
from atelier.policies.deepgen.connector import Bridge
from atelier.policies.deepgen.transformer import velocities, velocity


class DeepGenModule(nn.Module):
    """Gives velocities of conditions.

    Args:
        bridge: trained too, and applied to the hidden states that conditions then are; None: they
            are its outputs. Its queries are read by the frozen language model, so they stay as they
            are.
    """

    def __init__(self, transformer: SD3Transformer2DModel, bridge: Bridge | None = None) -> None:
        super().__init__()
        self.transformer = transformer
        self.bridge = bridge

    def forward(self, x: Tensor, timestep: Tensor, conditions: Conditions) -> Tensor:
        """Velocities [B, C, h, w] of latents x [B, C, h, w] at timestep [B]."""
        tokens, pooled = conditions.tokens, conditions.pooled
        if self.bridge is not None:
            tokens, pooled = self.bridge(tokens, conditions.mask)
        assert pooled is not None  # else the connector is trained
        told = (timestep, tokens, pooled, conditions.mask)
        if conditions.references is None:
            return velocity(self.transformer, x, *told)
        return torch.stack(velocities(self.transformer, list(x), *told, conditions.references))
