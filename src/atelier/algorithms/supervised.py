"""The loss on captioned pictures beside that of the rewards, and how the two are mixed. Pure.

Source: DeepGen-RL.
"""

from __future__ import annotations

from torch import Tensor

from atelier.config.sections.sft import SftConfig


def flow_matching_loss(velocity: Tensor, clean: Tensor, noise: Tensor) -> Tensor:
    """Mean of (v - (eps - x0))^2 of each picture: [B] of three [B, ...] of one shape."""
    return ((velocity - (noise - clean)) ** 2).flatten(1).mean(1)


def loss_shares(config: SftConfig) -> tuple[float, float]:
    """By what the loss of the rewards and that of the pictures are multiplied, where both are."""
    c = config.coefficient
    return (1 - c if config.mix == "convex" else 1.0), c
