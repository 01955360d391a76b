"""The text encoders of a Stable Diffusion 3 pipeline, there only while they are needed.

T5-XXL is larger than the transformer that is trained: encoders are loaded with the first prompt
that is new, and freed when all prompts of a run are encoded.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import StableDiffusion3Pipeline

from atelier.config.sections.policy import PolicyConfig
from atelier.policies.embedding_cache import Embedding, fingerprint
from atelier.policies.freeing import give_back
from atelier.policies.sd3.loading import load_text_encoders

_PARTS = ("text_encoder*", "tokenizer*")


class PipelineEncoders:
    """cached_encoder.TextEncoders of a pipeline."""

    def __init__(self, directory: Path, policy: PolicyConfig, device: torch.device) -> None:
        self._directory = directory
        self._policy = policy
        self._device = device
        self._pipeline: StableDiffusion3Pipeline | None = None

    @property
    def are_loaded(self) -> bool:
        return self._pipeline is not None

    @torch.no_grad()
    def encode(self, prompt: str) -> Embedding:
        """`embedding` [tokens, dim] and `pooled` [dim] on the CPU, in policy.text.dtype."""
        if self._pipeline is None:
            self._pipeline = load_text_encoders(self._directory, self._policy, self._device)
        embedding, _, pooled, _ = self._pipeline.encode_prompt(
            prompt=prompt,
            prompt_2=prompt,
            prompt_3=prompt,
            device=self._device,
            do_classifier_free_guidance=False,
            max_sequence_length=self._policy.max_sequence_length,
        )
        return {"embedding": embedding[0].cpu(), "pooled": pooled[0].cpu()}

    def free(self) -> None:
        """Give their memory back, the device's too; the next new prompt loads them again."""
        if self._pipeline is None:
            return
        self._pipeline = None
        give_back(self._device)

    def fingerprint(self) -> str:
        """What every embedding depends on beside its prompt, as 64 hex digits."""
        files = [file for part in _PARTS for file in self._directory.glob(f"{part}/*")]
        settings = {
            "dtype": self._policy.text.dtype,
            "max_sequence_length": self._policy.max_sequence_length,
            "device": self._device.type,
        }
        return fingerprint([file for file in files if file.is_file()], settings)
