"""Sizes of published pipelines that are not on this machine."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from torch import nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from atelier.config.facts.known_qwen import MODELS, encoder_tensors, known_qwen
from atelier.config.facts.qwen import VISION
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError


def count(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


def config(**policy: Any) -> RunConfig:
    lora = {"rank": 128, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    return RunConfig(policy={"lora": lora, **policy})


def test_the_sizes_are_those_of_the_classes() -> None:
    """Defaults of diffusers, and Qwen2.5-VL-7B."""
    encoder_config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        },
        vision_config={"depth": 32, "hidden_size": 1280, "out_hidden_size": 3584},
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        transformer, vae = QwenImageTransformer2DModel(), AutoencoderKLQwenImage()
        encoder = Qwen2_5_VLForConditionalGeneration(encoder_config)
    facts = known_qwen("Qwen/Qwen-Image", config())
    painter = facts.painter
    assert painter.transformer_parameters == count(transformer)
    assert painter.vae_parameters == count(vae)
    assert (painter.layers, painter.width) == (
        len(transformer.transformer_blocks),
        transformer.inner_dim,
    )
    assert painter.text_width == transformer.config.joint_attention_dim
    assert facts.vision_parameters == count(encoder.model.visual)
    assert facts.parameters == count(encoder) - count(encoder.model.visual) == 7_615_616_512
    shapes = {name: tuple(one.shape) for name, one in encoder.named_parameters()}
    ours = {name: one.shape for name, one in encoder_tensors().items()}
    del ours[f"{VISION}all"]
    assert ours == {name: one for name, one in shapes.items() if not name.startswith(VISION)}
    assert (facts.layers, facts.width, facts.vocabulary) == (28, 3584, 152_064)
    # bfloat16: about 41 GB and what else there is.
    assert math.isclose(facts.frozen_bytes, 42.5e9, rel_tol=0.01)


def test_the_published_adapter_has_81_million_parameters() -> None:
    """2 883 584 a layer."""
    assert known_qwen("Qwen/Qwen-Image", config()).adapter_parameters == 28 * 2_883_584


@pytest.mark.parametrize(("hub_id", "kind"), list(MODELS.items()))
def test_images_are_1024_pixels_wide_where_nothing_is_said(hub_id: str, kind: str) -> None:
    facts = known_qwen(hub_id, config())
    assert facts.kind == kind
    assert (facts.painter.image_tokens, facts.painter.pixels) == (4096, 1024**2)
    assert known_qwen(hub_id, config(resolution=512)).painter.image_tokens == 1024
    with pytest.raises(ConfigError, match=r"policy\.resolution: 520 pixels; .* multiple of 16"):
        known_qwen(hub_id, config(resolution=520))
