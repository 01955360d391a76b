"""A pipeline of SD3.5-Medium's shape with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
)

from atelier.policies.sd3.tiny import TinySD3Sizes, build_tokenizer


@dataclass(frozen=True)
class Shape:
    """Sizes of transformer and autoencoder. Defaults: SD3.5-Medium."""

    sample_size: int = 128
    layers: int = 24
    heads: int = 24
    dual_layers: int = 13
    table: int = 384
    text_width: int = 4096
    clip_widths: tuple[int, int] = (768, 1280)
    vae_channels: tuple[int, ...] = (128, 256, 512, 512)
    latent_channels: int = 16


SHAPES = {
    "medium": Shape(),
    "small": Shape(16, 2, 2, 1, 16, 64, (16, 32), (32, 32), 4),
}


def build_transformer(shape: Shape) -> SD3Transformer2DModel:
    """Random weights of the real class."""
    width = shape.heads * 64
    return SD3Transformer2DModel(
        sample_size=shape.sample_size,
        patch_size=2,
        in_channels=shape.latent_channels,
        out_channels=shape.latent_channels,
        num_layers=shape.layers,
        num_attention_heads=shape.heads,
        attention_head_dim=64,
        joint_attention_dim=shape.text_width,
        caption_projection_dim=width,
        pooled_projection_dim=sum(shape.clip_widths),
        pos_embed_max_size=shape.table,
        dual_attention_layers=tuple(range(shape.dual_layers)),
        qk_norm="rms_norm",
    )


def build_vae(shape: Shape) -> AutoencoderKL:
    blocks = len(shape.vae_channels)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=shape.vae_channels,
        layers_per_block=2,
        latent_channels=shape.latent_channels,
        sample_size=shape.sample_size * 2 ** (blocks - 1),
        scaling_factor=1.5305,
        shift_factor=0.0609,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def build_clip(tokenizer: CLIPTokenizer, width: int, layers: int) -> CLIPTextModelWithProjection:
    return CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=49408 if layers > 1 else len(tokenizer),
            hidden_size=width,
            intermediate_size=4 * width,
            projection_dim=width,
            num_hidden_layers=layers,
            num_attention_heads=max(1, width // 64),
            max_position_embeddings=tokenizer.model_max_length,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_t5(tokenizer: CLIPTokenizer, shape: Shape, real: bool) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(
            vocab_size=32128 if real else len(tokenizer),
            d_model=shape.text_width,
            d_kv=64,
            d_ff=10240 if real else 64,
            num_layers=24 if real else 1,
            num_heads=64 if real else 1,
            feed_forward_proj="gated-gelu",
        )
    )


def build_pipeline(shape: Shape, real_text: bool, folder: Path) -> None:
    """Write the pipeline in bfloat16, one part in memory after another."""
    tokenizer = build_tokenizer(TinySD3Sizes(clip_tokens=77))
    first, second = shape.clip_widths
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with device:
        pipeline = StableDiffusion3Pipeline(
            transformer=build_transformer(shape).to("cpu", torch.bfloat16),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=build_vae(shape).to("cpu", torch.bfloat16),
            text_encoder=build_clip(tokenizer, first, 12 if real_text else 1).to("cpu"),
            tokenizer=tokenizer,
            text_encoder_2=build_clip(tokenizer, second, 32 if real_text else 1).to("cpu"),
            tokenizer_2=tokenizer,
            text_encoder_3=build_t5(tokenizer, shape, real_text).to("cpu", torch.bfloat16),
            tokenizer_3=tokenizer,
        )
    pipeline.to(torch.bfloat16).save_pretrained(folder)
