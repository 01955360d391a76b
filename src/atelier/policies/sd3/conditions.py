"""Prompt embeddings of a Stable Diffusion 3 pipeline, encoded once a prompt and kept."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.policies.embedding_cache import Embedding, EmbeddingCache
from atelier.policies.sd3.text_encoders import TextEncoders

logger = logging.getLogger(__name__)

NO_PROMPT = ""  # of the unconditional branch of guidance


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


class PromptEncoder:
    """Text encoders behind a cache."""

    def __init__(self, encoders: TextEncoders, cache: EmbeddingCache, device: torch.device) -> None:
        self._encoders = encoders
        self._cache = cache
        self._device = device

    def encode(self, prompts: Sequence[str]) -> Conditions:
        """Conditions of the prompts, in their order."""
        distinct = {prompt: self._one(prompt) for prompt in dict.fromkeys(prompts)}
        return Conditions(
            self._stack([distinct[prompt]["embedding"] for prompt in prompts]),
            self._stack([distinct[prompt]["pooled"] for prompt in prompts]),
        )

    def prepare(self, prompts: Sequence[str], rank: int = 0) -> None:
        """Encode all prompts a run will ask for, and the empty one; then free the encoders.

        Every rank goes through them in an order of its own and finds on disk what the others have
        encoded: work is shared without a word. Encoders stay where the cache cannot hold all.
        """
        distinct = sorted({NO_PROMPT, *prompts})
        random.Random(rank).shuffle(distinct)
        for prompt in distinct:
            self._one(prompt)
        missing = sum(prompt not in self._cache for prompt in distinct)
        if missing:
            logger.warning(
                "%d of %d prompts do not fit in policy.text.memory_gigabytes and "
                "policy.text.disk_gigabytes: the text encoders stay loaded",
                missing,
                len(distinct),
            )
            return
        self._encoders.free()

    def _one(self, prompt: str) -> Embedding:
        found = self._cache.get(prompt)
        if found is None:
            found = self._encoders.encode(prompt)
            self._cache.put(prompt, found)
        return found

    def _stack(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values)).to(self._device).float()
