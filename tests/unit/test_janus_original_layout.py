"""The names of Janus' weights in the original layout, and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atelier.policies.janus.original_layout import (
    UNUSED,
    from_original,
    is_original,
    to_original,
)
from tests.support.random_janus import WIDE, Sizes, build_model

# Of the original code's modules: one name of each kind, and the shape it has there for Sizes().
ORIGINAL = {
    "language_model.model.embed_tokens.weight": (64, 64),
    "language_model.model.layers.1.self_attn.q_proj.weight": (64, 64),
    "language_model.model.layers.0.mlp.gate_proj.weight": (128, 64),
    "language_model.model.layers.0.input_layernorm.weight": (64,),
    "language_model.model.norm.weight": (64,),
    "language_model.lm_head.weight": (64, 64),
    "gen_embed.weight": (96, 8),
    "gen_aligner.layers.0.weight": (64, 8),
    "gen_aligner.layers.2.bias": (64,),
    "gen_head.output_mlp_projector.weight": (64, 64),
    "gen_head.vision_head.bias": (96,),
    "aligner.layers.0.weight": (64, 32),
    "aligner.layers.2.weight": (64, 64),
    "vision_model.vision_tower.pos_embed": (1, 16, 32),
    "vision_model.vision_tower.patch_embed.proj.weight": (32, 3, 16, 16),
    "vision_model.vision_tower.norm.weight": (32,),
    "vision_model.vision_tower.blocks.1.norm1.weight": (32,),
    "vision_model.vision_tower.blocks.0.norm2.bias": (32,),
    "vision_model.vision_tower.blocks.0.attn.qkv.weight": (96, 32),
    "vision_model.vision_tower.blocks.1.attn.qkv.bias": (96,),
    "vision_model.vision_tower.blocks.0.attn.proj.weight": (32, 32),
    "vision_model.vision_tower.blocks.0.mlp.fc1.weight": (64, 32),
    "vision_model.vision_tower.blocks.1.mlp.fc2.bias": (32,),
    "gen_vision_model.encoder.conv_in.weight": (32, 3, 3, 3),
    "gen_vision_model.encoder.conv_blocks.0.res.0.norm1.weight": (32,),
    "gen_vision_model.encoder.conv_blocks.3.downsample.conv.weight": (32, 32, 3, 3),
    "gen_vision_model.encoder.conv_blocks.4.attn.0.q.weight": (32, 32, 1, 1),
    "gen_vision_model.encoder.mid.0.conv1.weight": (32, 32, 3, 3),
    "gen_vision_model.encoder.mid.1.proj_out.bias": (32,),
    "gen_vision_model.encoder.norm_out.weight": (32,),
    "gen_vision_model.decoder.conv_blocks.0.attn.1.norm.weight": (32,),
    "gen_vision_model.decoder.conv_blocks.0.upsample.conv.weight": (32, 32, 3, 3),
    "gen_vision_model.decoder.conv_blocks.4.res.1.conv2.weight": (32, 32, 3, 3),
    "gen_vision_model.decoder.mid.2.norm2.weight": (32,),
    "gen_vision_model.decoder.conv_out.weight": (3, 32, 3, 3),
    "gen_vision_model.quantize.embedding.weight": (96, 8),
    "gen_vision_model.quant_conv.weight": (8, 32, 1, 1),
    "gen_vision_model.post_quant_conv.bias": (32,),
}
NOT_COMPUTED_WITH = {
    "vision_model.vision_tower.attn_pool.latent": torch.ones(1, 1, 32),
    "vision_model.vision_tower.attn_pool.kv.weight": torch.ones(64, 32),
    "vision_model.vision_tower.attn_pool.mlp.fc1.bias": torch.ones(64),
    "gen_vision_model.quantize.codebook_used": torch.ones(4),
}


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], value) for name, value in expected.items()
    )


def test_every_kind_of_weight_has_its_original_name_and_shape() -> None:
    found = to_original(build_model(Sizes()).state_dict())
    shapes = {name: tuple(found[name].shape) for name in ORIGINAL}
    assert shapes == ORIGINAL


@pytest.mark.parametrize("sizes", [Sizes(), WIDE, Sizes(tied=True)])
def test_there_and_back_is_exact(sizes: Sizes) -> None:
    here = build_model(sizes).state_dict()
    there = to_original(here)
    assert is_original(there)
    assert not is_original(here)
    # Three projections became one, in two layers, weights and biases.
    assert len(there) == len(here) - 2 * 2 * 2
    assert equal(from_original(there), here)
    assert equal(to_original(from_original(there)), there)


def test_a_model_computes_the_same_after_it_was_there() -> None:
    model, other = build_model(), build_model(seed=8)
    other.load_state_dict(from_original(to_original(model.state_dict())))
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    codes = torch.arange(16)[None]
    with torch.no_grad():
        for call in (
            lambda one: one.model.get_image_features(image).pooler_output,
            lambda one: one.model.vqmodel.decode(codes),
            lambda one: one.model.vqmodel.encode(image).quantized_last_hidden_state,
            lambda one: one(input_ids=codes).logits,
        ):
            assert torch.equal(call(other), call(model))


def test_queries_keys_and_values_are_stacked_in_this_order() -> None:
    here = build_model().state_dict()
    merged = to_original(here)["vision_model.vision_tower.blocks.1.attn.qkv.weight"]
    layer = "model.vision_model.encoder.layers.1.self_attn."
    for letter, part in zip("qkv", merged.chunk(3), strict=True):
        assert torch.equal(part, here[f"{layer}{letter}_proj.weight"])


def test_what_nobody_computes_with_is_left_out_and_may_be_put_back() -> None:
    here = build_model().state_dict()
    there = {**to_original(here), **NOT_COMPUTED_WITH}
    assert equal(from_original(there), here)
    assert equal(to_original(here, unused=there), there)
    rotary = "language_model.model.layers.0.self_attn.rotary_emb.inv_freq"
    assert UNUSED.fullmatch(rotary), "tables that older libraries saved"
    assert from_original({rotary: torch.ones(2)}) == {}


@pytest.mark.parametrize(
    "name", ["vision_model.vision_tower.blocks.0.ls1.gamma", "gen_embeds.weight"]
)
def test_a_name_of_no_known_part_is_an_error(name: str) -> None:
    with pytest.raises(KeyError, match="no weight of a Janus model"):
        from_original({name: torch.ones(1)})
