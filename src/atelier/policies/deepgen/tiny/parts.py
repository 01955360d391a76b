"""The parts of the embedded model, before they are trained.

All are of the classes that the published model has, in its layout: eight layers of Qwen2.5-VL, of
which the connector sees the seventh and the first, eight queries, and a transformer that paints
64 x 64 pixels in the latents of Tiny SD3, whose autoencoder it shares. Sizes are such that the
whole in float16 stays below 5 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler
from torch import nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from atelier.config.facts.connector_fit import chosen_layers
from atelier.policies.deepgen.connector import Bridge, Shape
from atelier.policies.deepgen.layout import Model
from atelier.policies.deepgen.template import Template
from atelier.policies.sd3.tiny import TinySD3Sizes, build_transformer

AUTOENCODER = Path("assets/tiny-sd3")
TOKENIZER = Path("assets/tiny-qwen-image/tokenizer")
_HEAD = 32  # values of a head of the language model


@dataclass(frozen=True)
class Sizes:
    """What decides size and cost."""

    width: int = 64  # of the language model
    feed_forward: int = 128
    layers: int = 8
    vision_width: int = 16  # it looks at nothing in the scene world's prompts
    queries: int = 8
    hidden: int = 96  # of the connector, and what it says of a token
    hidden_layers: int = 2
    painter_heads: int = 4  # of 24 values each
    painter_layers: int = 4
    shift: float = 1.0


def build_model(
    tokenizer: Any, vae: AutoencoderKL, sizes: Sizes | None = None, seed: int = 0
) -> Model:
    """In float32 and eval mode, a pure function of its arguments."""
    sizes = sizes or Sizes()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vlm = build_vlm(tokenizer, sizes)
        bridge = Bridge(bridge_shape(sizes))
        transformer = build_transformer(
            TinySD3Sizes(
                latent_channels=vae.config.latent_channels,
                vae_channels=tuple(vae.config.block_out_channels),
                heads=sizes.painter_heads,
                layers=sizes.painter_layers,
                clip_width=sizes.hidden // 2,  # two of them make a token there
            )
        )
    parts: tuple[nn.Module, ...] = (transformer, vlm, bridge, vae)
    for part in parts:
        part.float().eval()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=sizes.shift)
    return Model(transformer, vae, scheduler, vlm, bridge, tokenizer, Template())


def build_vlm(tokenizer: Any, sizes: Sizes) -> Qwen2_5_VLForConditionalGeneration:
    """The language model, and the least vision tower there can be."""
    token = tokenizer.convert_tokens_to_ids
    heads = sizes.width // _HEAD
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.width,
        "intermediate_size": sizes.feed_forward,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [4, 6, 6],
        },
        "bos_token_id": None,
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 1,
        "hidden_size": sizes.vision_width,
        "intermediate_size": 2 * sizes.vision_width,
        "num_heads": 2,
        "window_size": 112,
        "fullatt_block_indexes": [0],
        "out_hidden_size": sizes.width,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    return Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")


def bridge_shape(sizes: Sizes) -> Shape:
    return Shape(
        states=len(chosen_layers(sizes.layers)) * sizes.width,
        queries=sizes.queries,
        query_width=sizes.width,
        hidden_size=sizes.hidden,
        intermediate_size=4 * sizes.hidden,
        num_hidden_layers=sizes.hidden_layers,
        num_attention_heads=sizes.hidden // 24,
        tokens=sizes.hidden,
        pooled=sizes.hidden,
    )
