"""What a Stable Diffusion 3 paints from: embeddings of prompts, encoded once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.policies.cached_encoder import CachedEncoder
from atelier.policies.embedding_cache import Embedding


@dataclass(frozen=True)
class Conditions:
    """Embeddings of B prompts, `embedding` [tokens, dim] and `pooled` [dim] each, on the policy's
    device. Rows of equal prompts share theirs: they become a batch where one is computed with."""

    rows: Sequence[Embedding]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def embeddings(self) -> Tensor:
        """[B, tokens, dim] float32."""
        return torch.stack([one["embedding"] for one in self.rows]).float()

    @property
    def pooled(self) -> Tensor:
        """[B, dim] float32."""
        return torch.stack([one["pooled"] for one in self.rows]).float()

    def after(self, unconditional: Conditions) -> Conditions:
        """[unconditional, conditional] along the batch, as classifier-free guidance wants it."""
        return Conditions([*unconditional.rows, *self.rows])


class PromptEncoder(CachedEncoder):
    """Text encoders behind a cache."""

    def encode(self, prompts: Sequence[str]) -> Conditions:
        """Conditions of the prompts, in their order."""
        return Conditions(self.embeddings(prompts))
