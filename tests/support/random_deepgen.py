"""Small random DeepGen models of the real classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import SD3Transformer2DModel
from torch import nn

from atelier.policies.deepgen.layout import Model, write_model
from atelier.policies.deepgen.tiny.parts import Sizes, build_model
from atelier.policies.sd3.tiny import TinySD3Sizes, build_vae
from tests.support import random_qwen

SIZES = Sizes(
    width=32,
    feed_forward=48,
    queries=3,
    hidden=24,
    hidden_layers=2,
    painter_heads=1,
    painter_layers=2,
)
SIDE = 64  # pixels of its images


def build(seed: int = 7, sizes: Sizes = SIZES) -> Model:
    """Weights so large that everything depends on everything."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = build_vae(TinySD3Sizes(vae_channels=(8, 8, 8)))
        model = build_model(random_qwen.build_tokenizer(), vae, sizes, seed)
        for part in (model.transformer, model.vlm, model.bridge):
            widen(part)
    return model


def build_dual_transformer(seed: int = 8) -> SD3Transformer2DModel:
    """Of SD3.5's kind: its first block attends to the image twice; tables for 32 latents a side."""
    return build_transformer(seed, dual_attention_layers=(0,), qk_norm="rms_norm")


def build_transformer(seed: int = 8, **kind: Any) -> SD3Transformer2DModel:
    """Of SD3's kind, but for what `kind` says of its configuration."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = SD3Transformer2DModel(
            sample_size=16,
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=12,
            caption_projection_dim=16,
            pooled_projection_dim=10,
            pos_embed_max_size=16,
            **kind,
        )
        widen(transformer)
    return transformer.eval()


def save(folder: Path, seed: int = 7, sizes: Sizes = SIZES) -> Path:
    """A model's directory."""
    write_model(build(seed, sizes), folder)
    return folder


def widen(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        elif not parameter.any():
            nn.init.normal_(parameter, std=0.2)
