"""Prompts encoded once each and kept, so that what encodes them can be freed.

What a step's images are painted from is kept on the device, too: a prompt is copied there when it
is new, and not for every micro-batch and forward pass that has it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Protocol

import torch

from atelier.config.memory.prompts import EMBEDDINGS_ON_DEVICE
from atelier.policies.embedding_cache import Embedding, EmbeddingCache, MemoryCache
from atelier.transfer import to_device

logger = logging.getLogger(__name__)

NO_PROMPT = ""  # of the unconditional branch of guidance


class TextEncoders(Protocol):
    """Encodes one prompt at a time: its embedding must not depend on which others share a batch, or
    a cached one would differ from a recomputed one in the last bits."""

    def encode(self, prompt: str) -> Embedding:
        """Tensors by name, on the CPU."""
        ...

    def free(self) -> None:
        """Give their memory back; the next new prompt loads them again."""
        ...


class CachedEncoder:
    """Text encoders behind a cache. `device`: where their embeddings are used."""

    def __init__(self, encoders: TextEncoders, cache: EmbeddingCache, device: torch.device) -> None:
        self._encoders = encoders
        self._cache = cache
        self._device = device
        self._there = MemoryCache(EMBEDDINGS_ON_DEVICE)

    def embeddings(self, prompts: Sequence[str]) -> list[Embedding]:
        """Of the prompts, in their order, on the device; equal prompts share one."""
        distinct = {prompt: self._on_device(prompt) for prompt in dict.fromkeys(prompts)}
        return [distinct[prompt] for prompt in prompts]

    def prepare(self, prompts: Sequence[str], rank: int = 0) -> None:
        """Encode all prompts a run will ask for, and the empty one; then free the encoders.

        Every rank goes through them in an order of its own and finds on disk what the others have
        encoded: work is shared without a word. Encoders stay where the cache cannot hold all; then
        it stops when the first is pushed out, for each further one would push out another.
        """
        distinct = sorted({NO_PROMPT, *prompts})
        random.Random(rank).shuffle(distinct)
        for prompt in distinct:
            self._one(prompt)
            if distinct[0] not in self._cache:
                break
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

    def _on_device(self, prompt: str) -> Embedding:
        found = self._there.get(prompt)
        if found is None:
            made = self._one(prompt)
            found = {name: to_device(value, self._device) for name, value in made.items()}
            self._there.put(prompt, found)
        return found

    def _one(self, prompt: str) -> Embedding:
        found = self._cache.get(prompt)
        if found is None:
            found = self._encoders.encode(prompt)
            self._cache.put(prompt, found)
        return found
