"""Prompt embeddings of a Stable Diffusion 3 pipeline, encoded once a prompt and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.policies.cached_encoder import CachedEncoder, TextEncoders
from atelier.policies.embedding_cache import EmbeddingCache


@dataclass(frozen=True)
class Conditions:
    """Embeddings [B, tokens, dim] and pooled [B, dim], float32, on the policy's device."""

    embeddings: Tensor
    pooled: Tensor

    def __len__(self) -> int:
        return len(self.embeddings)

    def after(self, unconditional: Conditions) -> Conditions:
        """[unconditional, conditional] along the batch, as classifier-free guidance wants it."""
        return Conditions(
            torch.cat([unconditional.embeddings, self.embeddings]),
            torch.cat([unconditional.pooled, self.pooled]),
        )

    def repeated(self, count: int) -> Conditions:
        """Of one prompt, as many times. They share its memory."""
        return Conditions(self.embeddings.expand(count, -1, -1), self.pooled.expand(count, -1))


class PromptEncoder(CachedEncoder):
    """Text encoders behind a cache."""

    def __init__(self, encoders: TextEncoders, cache: EmbeddingCache, device: torch.device) -> None:
        super().__init__(encoders, cache)
        self._device = device

    def encode(self, prompts: Sequence[str]) -> Conditions:
        """Conditions of the prompts, in their order."""
        found = self.embeddings(prompts)
        return Conditions(
            self._stack([one["embedding"] for one in found]),
            self._stack([one["pooled"] for one in found]),
        )

    def _stack(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values)).to(self._device).float()
