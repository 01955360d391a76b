"""The prompt encoder of a pipeline directory, with the caches its configuration asks for."""

from __future__ import annotations

from pathlib import Path

import torch

from atelier.config.sections.policy import PolicyConfig
from atelier.policies.embedding_cache import open_cache
from atelier.policies.sd3.conditions import PromptEncoder
from atelier.policies.sd3.text_encoders import PipelineEncoders


def prompt_encoder(directory: Path, policy: PolicyConfig, device: torch.device) -> PromptEncoder:
    """Nothing is loaded until a prompt is new to the caches."""
    encoders = PipelineEncoders(directory, policy, device)
    return PromptEncoder(encoders, open_cache(policy.text, encoders.fingerprint()), device)
