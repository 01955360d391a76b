"""Sizes of published pipelines of Stable Diffusion 3.

Counted on the `meta` device from the real classes with the published configuration, which is what
benchmarks/memory.py builds (tests/unit/test_config_known_models.py counts again).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from atelier.config.facts.sd3 import CLIP_TOKENS, SD3Facts
from atelier.config.image_size import latent_side, vae_factor
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError

# Module, its matrix, and in how many blocks of SD3.5-Medium's transformer it is.
_SD35_MEDIUM_LINEAR = (
    ("attn.to_q", (1536, 1536), 24),
    ("attn.to_k", (1536, 1536), 24),
    ("attn.to_v", (1536, 1536), 24),
    ("attn.to_out.0", (1536, 1536), 24),
    ("attn.add_q_proj", (1536, 1536), 24),
    ("attn.add_k_proj", (1536, 1536), 24),
    ("attn.add_v_proj", (1536, 1536), 24),
    ("attn.to_add_out", (1536, 1536), 23),  # the last block makes no text
    ("attn2.to_q", (1536, 1536), 13),
    ("attn2.to_k", (1536, 1536), 13),
    ("attn2.to_v", (1536, 1536), 13),
    ("attn2.to_out.0", (1536, 1536), 13),
    ("ff.net.0.proj", (6144, 1536), 24),
    ("ff.net.2", (1536, 6144), 24),
    ("ff_context.net.0.proj", (6144, 1536), 23),
    ("ff_context.net.2", (1536, 6144), 23),
    ("norm1.linear", (9216, 1536), 11),
    ("norm1.linear", (13824, 1536), 13),
    ("norm1_context.linear", (9216, 1536), 23),
    ("norm1_context.linear", (3072, 1536), 1),
    ("context_embedder", (1536, 4096), 1),
    ("norm_out.linear", (3072, 1536), 1),
    ("proj_out", (64, 1536), 1),
    ("time_text_embed.text_embedder.linear_1", (1536, 2048), 1),
    ("time_text_embed.text_embedder.linear_2", (1536, 1536), 1),
    ("time_text_embed.timestep_embedder.linear_1", (1536, 256), 1),
    ("time_text_embed.timestep_embedder.linear_2", (1536, 1536), 1),
)


@dataclass(frozen=True)
class KnownPipeline:
    """What the files of a pipeline would say (sd3.py), all sizes in tensors' elements."""

    transformer: dict[str, int]  # of its config.json
    block_out_channels: tuple[int, ...]  # of the autoencoder's
    parameters: int  # of the transformer, with its stored table of positions
    linear: Iterable[tuple[str, tuple[int, int], int]]
    text_parameters: int
    vae_parameters: int
    stored_bytes: int  # of one parameter of text encoders and autoencoder


PIPELINES = {
    "stabilityai/stable-diffusion-3.5-medium": KnownPipeline(
        transformer={
            "sample_size": 128,
            "patch_size": 2,
            "pos_embed_max_size": 384,
            "in_channels": 16,
            "joint_attention_dim": 4096,
            "pooled_projection_dim": 2048,
            "num_attention_heads": 24,
            "attention_head_dim": 64,
            "num_layers": 24,
        },
        block_out_channels=(128, 256, 512, 512),
        parameters=2_243_171_520 + 226_492_416,
        linear=_SD35_MEDIUM_LINEAR,
        text_parameters=123_650_304 + 694_659_840 + 4_762_310_656,  # CLIP-L, CLIP-G, T5-XXL
        vae_parameters=83_819_683,
        stored_bytes=2,
    ),
}


def known_sd3(hub_id: str, config: RunConfig) -> SD3Facts:
    """Sizes of one of PIPELINES, for the images a configuration asks for.

    Raises ConfigError naming policy.resolution where the model has no place for such images, or
    policy.lora.target_modules where it has no such module.
    """
    model = PIPELINES[hub_id]
    return SD3Facts(
        text_parameters=model.text_parameters,
        frozen_bytes=model.stored_bytes * (model.text_parameters + model.vae_parameters),
        text_tokens=CLIP_TOKENS + config.policy.max_sequence_length,
        **known_parts(model, config, config.policy.resolution),
    )


def known_parts(model: KnownPipeline, config: RunConfig, resolution: int | None) -> dict[str, Any]:
    """Of SD3Facts all that is of the transformer and the autoencoder. Raises ConfigError as
    `known_sd3`."""
    shape, vae = model.transformer, {"block_out_channels": model.block_out_channels}
    side = latent_side(resolution, shape, vae)
    return {
        "parameters": model.parameters,
        "adapter_parameters": _adapter_parameters(model, config),
        "vae_parameters": model.vae_parameters,
        "latent_values": shape["in_channels"] * side**2,
        "image_tokens": (side // shape["patch_size"]) ** 2,
        "text_width": shape["joint_attention_dim"],
        "pooled_width": shape["pooled_projection_dim"],
        "width": shape["num_attention_heads"] * shape["attention_head_dim"],
        "layers": shape["num_layers"],
        "pixels": (side * vae_factor(vae)) ** 2,
        "vae_channels": model.block_out_channels[1],
    }


def _adapter_parameters(model: KnownPipeline, config: RunConfig) -> int:
    """As of files: of every matrix whose module's name ends in a target."""
    lora = config.policy.lora
    targets = tuple(lora.target_modules)
    count = sum(
        blocks * lora.rank * sum(shape)
        for name, shape, blocks in model.linear
        if f"transformer_blocks.0.{name}".endswith(targets)
    )
    if config.policy.trainable == "lora" and not count:
        names = ", ".join(targets) or "nothing"
        raise ConfigError(f"policy.lora.target_modules: {names} names no module of the transformer")
    return count
