"""Exponential moving average of the trained parameters."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from atelier.config.sections.train import EmaConfig
from atelier.transfer import Arriving


def ema_decay(updates: int, largest: float) -> float:
    """min((1 + n) / (10 + n), largest) for the n-th optimizer update, counted from 0."""
    return min((1 + updates) / (10 + updates), largest)


class Ema:
    """The average itself: float32 copies by name, equal on every rank.

    Args:
        weights: where it begins; it stays on their device.
        in_background: whether the trained weights are on another one, and too many to wait for:
            they are copied behind what the device was told, and averaged by a thread.
    """

    def __init__(
        self, config: EmaConfig, weights: Mapping[str, Tensor], in_background: bool = False
    ) -> None:
        self._config = config
        self._weights = {name: value.float().clone() for name, value in weights.items()}
        self._thread = ThreadPoolExecutor(1, "average") if in_background else None
        self._moving: Future[None] | None = None

    @property
    def weights(self) -> dict[str, Tensor]:
        """The average of all updates so far."""
        if self._moving is not None:
            self._moving.result()
            self._moving = None
        return self._weights

    def due(self, update: int) -> bool:
        """Whether the average takes part in update n (counted from 0): when (n+1) % every == 0."""
        return (update + 1) % self._config.every == 0

    def update(self, update: int, weights: Mapping[str, Tensor]) -> None:
        """average <- decay * average + (1 - decay) * weights."""
        decay = ema_decay(update, self._config.decay)
        if self._thread is None:
            move(self.weights, weights, decay)
            return
        average = self.weights  # before more is copied
        arriving = {name: Arriving(value.detach()) for name, value in weights.items()}
        self._moving = self._thread.submit(_move_to, average, arriving, decay)

    def close(self) -> None:
        """End the thread, when what it does is done."""
        if self._thread is not None:
            self._thread.shutdown()


def _move_to(average: Mapping[str, Tensor], arriving: Mapping[str, Arriving], decay: float) -> None:
    move(average, {name: one.wait() for name, one in arriving.items()}, decay)


@torch.no_grad()
def move(average: Mapping[str, Tensor], weights: Mapping[str, Tensor], decay: float) -> None:
    """average <- decay * average + (1 - decay) * weights, in place."""
    for name, value in average.items():
        value.lerp_(weights[name].float(), 1 - decay)
