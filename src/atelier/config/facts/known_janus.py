"""Sizes of the published Janus-Pro models, in the layout of transformers.

Their tensors are listed here, and counted by the code that counts those of files;
tests/unit/test_config_known_models.py holds them against the real classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atelier.config.facts.files import Stored
from atelier.config.facts.janus import LANGUAGE_MODEL, ImageParts, JanusFacts, janus_facts
from atelier.config.schema import RunConfig

IMAGE_TOKENS = 576  # of an image, of every published Janus
_VOCABULARY = 102_400
_POSITIONS = 16_384
_CODEBOOK, _CODE_WIDTH = 16_384, 8
_VISION_WIDTH = 1024
_VISION_TOWER = 303_688_704  # SigLIP-large, patches of 16 pixels, 384 x 384
_IMAGE_TOKENIZER = 71_883_403  # VQ-16
_STORED_BYTES = 2  # of a parameter: bfloat16


@dataclass(frozen=True)
class KnownJanus:
    """What one differs from the other in."""

    width: int
    layers: int
    feed_forward: int


MODELS = {
    "deepseek-community/Janus-Pro-1B": KnownJanus(2048, 24, 5632),
    "deepseek-community/Janus-Pro-7B": KnownJanus(4096, 30, 11008),
}
# In the original layout: the same models as converted to transformers.
CONVERTED = {
    "deepseek-ai/Janus-Pro-1B": "deepseek-community/Janus-Pro-1B",
    "deepseek-ai/Janus-Pro-7B": "deepseek-community/Janus-Pro-7B",
}


def known_janus(hub_id: str, config: RunConfig) -> JanusFacts:
    """Sizes of one of MODELS."""
    model = MODELS[hub_id]
    aligner = (_VISION_WIDTH + 1) * model.width + (model.width + 1) * model.width
    images = ImageParts(
        vision_parameters=_VISION_TOWER + aligner,
        tokenizer_parameters=_IMAGE_TOKENIZER,
        stored_bytes=_STORED_BYTES * (_VISION_TOWER + aligner + _IMAGE_TOKENIZER),
        tokens=IMAGE_TOKENS,
        pixels=384 * 384,
        channels=128,
    )
    return replace(janus_facts(own_tensors(model), images, config, hub_id), positions=_POSITIONS)


def own_tensors(model: KnownJanus) -> dict[str, Stored]:
    """All that is not frozen, by name."""
    width, inner = model.width, model.feed_forward
    layer = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (width, width),
        "self_attn.v_proj": (width, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    matrices: dict[str, tuple[int, ...]] = {
        f"{LANGUAGE_MODEL}layers.{index}.{name}": shape
        for index in range(model.layers)
        for name, shape in layer.items()
    }
    matrices |= {
        f"{LANGUAGE_MODEL}embed_tokens": (_VOCABULARY, width),
        f"{LANGUAGE_MODEL}norm": (width,),
        "lm_head": (_VOCABULARY, width),
        "model.generation_embeddings": (_CODEBOOK, _CODE_WIDTH),
    }
    with_bias = {
        "model.generation_aligner.fc1": (width, _CODE_WIDTH),
        "model.generation_aligner.hidden_layers.0": (width, width),
        "model.generation_head.proj_out": (width, width),
        "model.generation_head.vision_head": (_CODEBOOK, width),
    }
    weights = {f"{name}.weight": shape for name, shape in (matrices | with_bias).items()}
    biases = {f"{name}.bias": shape[:1] for name, shape in with_bias.items()}
    return {name: Stored(shape, _STORED_BYTES) for name, shape in (weights | biases).items()}
