"""The low-rank adapter of a Stable Diffusion 3 transformer."""

from __future__ import annotations

import torch
from diffusers import SD3Transformer2DModel
from peft import LoraConfig as PeftLoraConfig

from atelier.config.sections.policy import LoraConfig


def peft_config(config: LoraConfig) -> PeftLoraConfig:
    """peft's form of our settings: Gaussian A, zero B, no dropout."""
    return PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.target_modules),
        init_lora_weights="gaussian",
        lora_dropout=0.0,
    )


def add_adapter(transformer: SD3Transformer2DModel, config: LoraConfig, seed: int | None) -> None:
    """Attach a trainable adapter in place, initialised from `seed` (None: values do not matter).

    Its parameters are float32 whatever the transformer is held in: a 16-bit weight would lose the
    small updates of AdamW.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        transformer.add_adapter(peft_config(config))
    for parameter in transformer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
