"""Prompt embeddings of a Stable Diffusion 3 pipeline, encoded once a prompt and kept.

Each prompt is encoded alone: an embedding must not depend on which prompts share its batch, or a
cached one would differ from a recomputed one in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor


@dataclass(frozen=True)
class Conditions:
    """Embeddings [B, tokens, dim] and pooled [B, dim], on the policy's device."""

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
    """Encodes prompts with a pipeline's text encoders and remembers the results."""

    def __init__(
        self, pipeline: StableDiffusion3Pipeline, device: torch.device, max_sequence_length: int
    ) -> None:
        self._pipeline = pipeline
        self._device = device
        self._max_sequence_length = max_sequence_length
        self._cache: dict[str, tuple[Tensor, Tensor]] = {}

    def encode(self, prompts: Sequence[str]) -> Conditions:
        """Conditions of the prompts, in their order."""
        pairs = [self._encode_one(prompt) for prompt in prompts]
        return Conditions(
            torch.stack([embedding for embedding, _ in pairs]).to(self._device),
            torch.stack([pooled for _, pooled in pairs]).to(self._device),
        )

    @torch.no_grad()
    def _encode_one(self, prompt: str) -> tuple[Tensor, Tensor]:
        if prompt not in self._cache:
            embedding, _, pooled, _ = self._pipeline.encode_prompt(
                prompt=prompt,
                prompt_2=prompt,
                prompt_3=prompt,
                device=self._device,
                do_classifier_free_guidance=False,
                max_sequence_length=self._max_sequence_length,
            )
            self._cache[prompt] = (embedding[0], pooled[0])
        return self._cache[prompt]
