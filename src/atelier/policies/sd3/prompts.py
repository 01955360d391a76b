"""The prompt encoder of a pipeline directory, with the caches its configuration asks for."""

from __future__ import annotations

from pathlib import Path

import torch

from atelier.config.paths import from_root
from atelier.config.schema import PolicyConfig
from atelier.policies.embedding_cache import DiskCache, EmbeddingCache, MemoryCache
from atelier.policies.sd3.conditions import PromptEncoder
from atelier.policies.sd3.text_encoders import TextEncoders

GIGABYTE = 10**9
CACHE = ".atelier/embeddings"


def prompt_encoder(directory: Path, policy: PolicyConfig, device: torch.device) -> PromptEncoder:
    """Nothing is loaded until a prompt is new to the caches."""
    encoders = TextEncoders(directory, policy, device)
    memory = MemoryCache(int(policy.text.memory_gigabytes * GIGABYTE))
    limit = int(policy.text.disk_gigabytes * GIGABYTE)
    disk = DiskCache(from_root(CACHE), encoders.fingerprint(), limit) if limit else None
    return PromptEncoder(encoders, EmbeddingCache(memory, disk), device)
