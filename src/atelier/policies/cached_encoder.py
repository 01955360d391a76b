"""Prompts encoded once each and kept, so that what encodes them can be freed."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Protocol

from atelier.policies.embedding_cache import Embedding, EmbeddingCache

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
    """Text encoders behind a cache."""

    def __init__(self, encoders: TextEncoders, cache: EmbeddingCache) -> None:
        self._encoders = encoders
        self._cache = cache

    def embeddings(self, prompts: Sequence[str]) -> list[Embedding]:
        """Of the prompts, in their order."""
        distinct = {prompt: self._one(prompt) for prompt in dict.fromkeys(prompts)}
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

    def _one(self, prompt: str) -> Embedding:
        found = self._cache.get(prompt)
        if found is None:
            found = self._encoders.encode(prompt)
            self._cache.put(prompt, found)
        return found
