"""Sizes of the published Qwen-Image pipelines.

Text to image and edits have parts of the same sizes. The language model's tensors are listed here
and counted by the code that counts those of files; tests/unit/test_qwen_known.py holds all of it
against the real classes.
"""

from __future__ import annotations

from atelier.config.facts.files import Stored
from atelier.config.facts.qwen import (
    LANGUAGE_MODEL,
    PUBLISHED_SIDE,
    VISION,
    Kind,
    PainterFacts,
    QwenFacts,
    fitting,
    qwen_facts,
)
from atelier.config.schema import RunConfig

MODELS: dict[str, Kind] = {"Qwen/Qwen-Image": "text", "Qwen/Qwen-Image-Edit-2509": "edit"}

_WIDTH, _LAYERS, _FEED_FORWARD, _KEYS, _VOCABULARY = 3584, 28, 18_944, 512, 152_064
_VISION_TOWER = 676_550_144
_TRANSFORMER, _AUTOENCODER = 20_430_401_088, 126_892_531
_STORED_BYTES = 2  # of a parameter: bfloat16
_PATCH = 16  # pixels of a token's side


def known_qwen(hub_id: str, config: RunConfig) -> QwenFacts:
    """Sizes of one of MODELS.

    Raises ConfigError naming policy.resolution where the model has no place for such images.
    """
    side = fitting(config.policy.resolution or PUBLISHED_SIDE, _PATCH)
    painter = PainterFacts(
        transformer_parameters=_TRANSFORMER,
        vae_parameters=_AUTOENCODER,
        stored_bytes=_STORED_BYTES * (_TRANSFORMER + _AUTOENCODER),
        layers=60,
        width=3072,
        text_width=_WIDTH,
        image_tokens=(side // _PATCH) ** 2,
        pixels=side**2,
        vae_channels=192,
    )
    return qwen_facts(encoder_tensors(), painter, MODELS[hub_id], config, hub_id)


def encoder_tensors() -> dict[str, Stored]:
    """Of the text encoder, by name; the vision tower is one tensor of all its values."""
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (_WIDTH, _WIDTH),
        "self_attn.q_proj.bias": (_WIDTH,),
        "self_attn.k_proj.weight": (_KEYS, _WIDTH),
        "self_attn.k_proj.bias": (_KEYS,),
        "self_attn.v_proj.weight": (_KEYS, _WIDTH),
        "self_attn.v_proj.bias": (_KEYS,),
        "self_attn.o_proj.weight": (_WIDTH, _WIDTH),
        "mlp.gate_proj.weight": (_FEED_FORWARD, _WIDTH),
        "mlp.up_proj.weight": (_FEED_FORWARD, _WIDTH),
        "mlp.down_proj.weight": (_WIDTH, _FEED_FORWARD),
        "input_layernorm.weight": (_WIDTH,),
        "post_attention_layernorm.weight": (_WIDTH,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"{LANGUAGE_MODEL}layers.{index}.{name}": shape
        for index in range(_LAYERS)
        for name, shape in layer.items()
    }
    shapes |= {
        f"{LANGUAGE_MODEL}embed_tokens.weight": (_VOCABULARY, _WIDTH),
        f"{LANGUAGE_MODEL}norm.weight": (_WIDTH,),
        "lm_head.weight": (_VOCABULARY, _WIDTH),
        f"{VISION}all": (_VISION_TOWER,),
    }
    return {name: Stored(shape, _STORED_BYTES) for name, shape in shapes.items()}
