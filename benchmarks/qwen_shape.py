"""A pipeline with the language model of Qwen2.5-VL-3B's shape, random, and a small painter.

    python -m benchmarks.qwen_shape FOLDER

What is trained has its real size; what paints is the embedded pipeline's transformer and
autoencoder for hidden states of that width, untrained. The tokens are the embedded tokenizer's, a
cut of the published one, and the vocabulary is the published one's size.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from atelier.policies.qwen.templates import END, IMAGE_PAD
from atelier.policies.qwen.tiny.parts import Sizes, assemble, build_autoencoder, build_transformer
from atelier.policies.qwen.tiny.tokenizer import load_tokenizer

TOKENIZER = Path("assets/tiny-qwen-image/tokenizer")


@dataclass(frozen=True)
class QwenShape:
    """Sizes of the language model and its vision tower. Defaults: Qwen2.5-VL-3B."""

    width: int = 2048
    layers: int = 36
    heads: int = 16
    key_heads: int = 2
    feed_forward: int = 11_008
    vocabulary: int = 151_936
    vision_width: int = 1280
    vision_layers: int = 32
    vision_feed_forward: int = 3420

    @property
    def head(self) -> int:
        return self.width // self.heads


SHAPES = {
    "3b": QwenShape(),
    "small": QwenShape(128, 2, 4, 2, 256, 2048, 128, 8, 128),
}


def build_encoder(
    shape: QwenShape, tokenizer: Qwen2Tokenizer
) -> Qwen2_5_VLForConditionalGeneration:
    """Random weights of the real class in bfloat16, on the default device."""
    token = tokenizer.convert_tokens_to_ids
    quarter = shape.head // 8  # of the rotary axes, which share half a head: 2, 3 and 3 of 8
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.width,
            "intermediate_size": shape.feed_forward,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.key_heads,
            "max_position_embeddings": 32_768,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1_000_000.0,
                "mrope_section": [quarter, quarter * 3 // 2, quarter * 3 // 2],
            },
            "bos_token_id": None,
            "eos_token_id": token(END),
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": shape.vision_layers,
            "hidden_size": shape.vision_width,
            "intermediate_size": shape.vision_feed_forward,
            "num_heads": 16,
            "out_hidden_size": shape.width,
            "fullatt_block_indexes": list(range(7, shape.vision_layers, 8)),
        },
        image_token_id=token(IMAGE_PAD),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration._from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa"
    )


def write_pipeline(shape: QwenShape, folder: Path) -> None:
    """Write a pipeline of text to image."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(TOKENIZER)
    with device:
        encoder = build_encoder(shape, tokenizer)
    painter = build_transformer(Sizes(width=shape.width))
    with torch.no_grad():  # what is zero before training would paint the same of every completion
        for weight in painter.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    pipeline = assemble("text", tokenizer, encoder.to("cpu"), build_autoencoder(), painter)
    pipeline.save_pretrained(folder)


if __name__ == "__main__":
    write_pipeline(SHAPES[sys.argv[2] if len(sys.argv) > 2 else "3b"], Path(sys.argv[1]))
