"""The low-rank adapter of a Stable Diffusion 3 transformer."""

from __future__ import annotations

import torch
from diffusers import SD3Transformer2DModel
from peft import LoraConfig as PeftLoraConfig

from atelier.config.schema import LoraConfig


def peft_config(config: LoraConfig) -> PeftLoraConfig:
    """peft's form of our settings: Gaussian A, zero B, no dropout (spec flow 3.6)."""
    return PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.target_modules),
        init_lora_weights="gaussian",
        lora_dropout=0.0,
    )


def add_adapter(transformer: SD3Transformer2DModel, config: LoraConfig, seed: int | None) -> None:
    """Attach a trainable adapter in place, initialised from `seed` (None: values do not matter)."""
    if seed is None:
        transformer.add_adapter(peft_config(config))
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer.add_adapter(peft_config(config))
