"""DeepGen 1.0 by its published shapes, with random weights or on the meta device: for measuring
memory and counting parameters (config/facts/known_deepgen.py).

Source: spec deepgen 1.1, 1.5, 1.6; Qwen2.5-VL-3B-Instruct's published configuration.
"""

from __future__ import annotations

from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from atelier.policies.deepgen.connector import Bridge, Shape


def build_vlm() -> Qwen2_5_VLForConditionalGeneration:
    """Qwen2.5-VL-3B; text head and embedding are one."""
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 151_936,
            "hidden_size": 2048,
            "intermediate_size": 11_008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [16, 24, 24],
            },
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        tie_word_embeddings=True,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def build_bridge() -> Bridge:
    return Bridge(Shape())
