"""What a denoising model has to offer so that images can be sampled and trained on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from atelier.data.prompts import Prompt
from atelier.policies.flow.noise import Request
from atelier.policies.grey_levels import GreyLevels


class FlowModel(ABC):
    """Predicts velocities of latents [B, ...], float32. Conditions are a prompt's embeddings, as
    `encode` makes them; nobody else looks inside."""

    image_side: int
    """Height and width of its images in pixels."""

    def encode(self, prompts: Sequence[Prompt], guidance: float) -> Any:
        """Of what is asked for; where images are edited, with these, and where `guidance` is not 1
        with what it leads away from."""
        return self.encode_texts([one.text for one in prompts])

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> Any:
        """Of words alone."""

    @abstractmethod
    def velocity(
        self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Any, guidance: float
    ) -> Tensor:
        """Of `module`, the trained one or what an engine wraps it in. timestep [B] or [1]."""

    @abstractmethod
    def reference_velocity(
        self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Any, guidance: float
    ) -> Tensor:
        """Of the policy before training, without gradients."""

    @abstractmethod
    def noise(self, keys: Sequence[int], draws: int = 1) -> Tensor:
        """Standard normal [B, draws, ...], a function of the keys alone."""

    @abstractmethod
    def expect_noise(self, requests: Sequence[Request]) -> None:
        """Noise that is asked for next, in this order: it may be drawn meanwhile."""

    @abstractmethod
    def latents(self, images: np.ndarray, keys: Sequence[int]) -> Tensor:
        """Of images uint8 [B, H, W, 3], without gradients; where they are drawn, by the keys."""

    @abstractmethod
    def decode(self, latents: Tensor) -> GreyLevels:
        """Images [B, H, W, 3]."""
