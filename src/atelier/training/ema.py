"""Exponential moving average of the trained parameters (spec flow 3.6)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atelier.config.sections.train import EmaConfig


def ema_decay(updates: int, largest: float) -> float:
    """min((1 + n) / (10 + n), largest) for the n-th optimizer update, counted from 0."""
    return min((1 + updates) / (10 + updates), largest)


class Ema:
    """The average itself: float32 copies by name, on the CPU, equal on every rank."""

    def __init__(self, config: EmaConfig, weights: Mapping[str, Tensor]) -> None:
        self._config = config
        self.weights = {name: value.float().clone() for name, value in weights.items()}

    def due(self, update: int) -> bool:
        """Whether the average takes part in update n (counted from 0): when (n+1) % every == 0."""
        return (update + 1) % self._config.every == 0

    def update(self, update: int, weights: Mapping[str, Tensor]) -> None:
        """average <- decay * average + (1 - decay) * weights."""
        move(self.weights, weights, ema_decay(update, self._config.decay))


@torch.no_grad()
def move(average: Mapping[str, Tensor], weights: Mapping[str, Tensor], decay: float) -> None:
    """average <- decay * average + (1 - decay) * weights, in place."""
    for name, value in average.items():
        value.lerp_(weights[name].float(), 1 - decay)
