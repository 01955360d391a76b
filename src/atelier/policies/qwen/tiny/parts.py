"""The parts of the embedded pipelines, before they are trained.

All are of the classes that the published pipelines have. A picture of 64 x 64 pixels is 16 x 16
latents, which the transformer sees as 64 tokens; the language model sees one that is to be edited
as 16 tokens. Sizes are such that a pipeline in float16 stays below 5 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from torch import nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

from atelier.policies.qwen.areas import Areas
from atelier.policies.qwen.presets import PRESETS
from atelier.policies.qwen.templates import END, IMAGE_PAD

Kind = Literal["text", "edit"]
KINDS: tuple[Kind, ...] = ("text", "edit")

SIDE = 64  # pixels of a picture
AREAS = Areas(SIDE**2, SIDE**2)  # a source image is seen in its own size
PRESET = "lightning"  # the noise levels that the embedded pipelines are made for
PATCH = 8  # pixels a side that the vision tower takes together
_ROPE_AXES = (8, 12, 12)  # of a head of 32: picture, row, column


@dataclass(frozen=True)
class Sizes:
    """What decides the cost of a pipeline."""

    width: int = 96  # of the language model
    feed_forward: int = 192
    layers: int = 4
    vision_width: int = 48
    vision_layers: int = 2
    latent_channels: int = 4
    autoencoder_width: int = 20
    painter_heads: int = 3  # of 32 values each
    painter_layers: int = 4


def build_encoder(
    tokenizer: Qwen2Tokenizer, kind: Kind, sizes: Sizes | None = None, seed: int = 0
) -> Qwen2_5_VLForConditionalGeneration:
    """The language model in float32 and eval mode. That of text to image has the least vision tower
    there can be: it never looks."""
    sizes = sizes or Sizes()
    token = tokenizer.convert_tokens_to_ids
    sees = kind == "edit"
    vision_width, depth = (sizes.vision_width, sizes.vision_layers) if sees else (16, 1)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.width,
        "intermediate_size": sizes.feed_forward,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.width // 32,
        "num_key_value_heads": sizes.width // 32,
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [4, 6, 6],
        },
        "bos_token_id": None,
        "eos_token_id": token(END),
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": depth,
        "hidden_size": vision_width,
        "intermediate_size": 2 * vision_width,
        "num_heads": 2,
        "patch_size": PATCH,
        "window_size": SIDE,
        "fullatt_block_indexes": list(range(depth)),
        "out_hidden_size": sizes.width,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token(IMAGE_PAD),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    return model.float().eval()


def build_processor(tokenizer: Qwen2Tokenizer) -> Qwen2VLProcessor:
    """Every source image becomes `SIDE` x `SIDE` pixels."""
    pixels = {"shortest_edge": SIDE**2, "longest_edge": SIDE**2}
    images: dict[str, Any] = {"size": pixels, "patch_size": PATCH}
    return Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**images),
        video_processor=Qwen2VLVideoProcessor(**images),
        tokenizer=tokenizer,
    )


def build_autoencoder(sizes: Sizes | None = None, seed: int = 0) -> AutoencoderKLQwenImage:
    """[B, 3, 1, 64, 64] in [-1, 1] to [B, 4, 1, 16, 16]; its units are those of the latents."""
    sizes = sizes or Sizes()
    channels = sizes.latent_channels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoencoderKLQwenImage(
            base_dim=sizes.autoencoder_width,
            z_dim=channels,
            dim_mult=[1, 1, 1],
            num_res_blocks=1,
            attn_scales=[],
            temperal_downsample=[False, True],
            latents_mean=[0.0] * channels,
            latents_std=[1.0] * channels,
        )
    return model.eval()


def build_transformer(sizes: Sizes | None = None, seed: int = 0) -> QwenImageTransformer2DModel:
    """Modulations and output begin at zero, as in DiT."""
    sizes = sizes or Sizes()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=4 * sizes.latent_channels,
            out_channels=sizes.latent_channels,
            num_layers=sizes.painter_layers,
            attention_head_dim=sum(_ROPE_AXES),
            num_attention_heads=sizes.painter_heads,
            joint_attention_dim=sizes.width,
            axes_dims_rope=_ROPE_AXES,
        )
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
                if name.endswith(("img_mod.1", "txt_mod.1", "norm_out.linear", "proj_out")):
                    nn.init.zeros_(module.weight)
    return model.eval()


def build_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(**PRESETS[PRESET].scheduler)


def assemble(
    kind: Kind,
    tokenizer: Qwen2Tokenizer,
    encoder: Qwen2_5_VLForConditionalGeneration,
    autoencoder: AutoencoderKLQwenImage,
    transformer: QwenImageTransformer2DModel,
) -> QwenImagePipeline | QwenImageEditPlusPipeline:
    """The pipeline of these parts."""
    parts = {
        "scheduler": build_scheduler(),
        "vae": autoencoder,
        "text_encoder": encoder,
        "tokenizer": tokenizer,
        "transformer": transformer,
    }
    if kind == "text":
        pipeline = QwenImagePipeline(**parts)
    else:
        pipeline = QwenImageEditPlusPipeline(**parts, processor=build_processor(tokenizer))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def build_pipeline(
    tokenizer: Qwen2Tokenizer, kind: Kind, sizes: Sizes | None = None, seed: int = 0
) -> QwenImagePipeline | QwenImageEditPlusPipeline:
    """A whole pipeline of which nothing is trained; a pure function of its arguments."""
    return assemble(
        kind,
        tokenizer,
        build_encoder(tokenizer, kind, sizes, seed),
        build_autoencoder(sizes, seed),
        build_transformer(sizes, seed),
    )
