"""Models of Janus-Pro's shapes with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    JanusConfig,
    JanusForConditionalGeneration,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from atelier.policies.janus.tiny import IMAGE, TinyJanusSizes, build_processor, build_tokenizer


@dataclass(frozen=True)
class JanusShape:
    """Sizes of language model, vision tower and image tokenizer. Defaults: Janus-Pro-1B."""

    width: int = 2048
    layers: int = 24
    heads: int = 16
    feed_forward: int = 5632
    vocabulary: int = 102_400
    side: int = 24  # image tokens
    patch: int = 16
    codebook: int = 16_384
    vision_width: int = 1024
    vision_layers: int = 24
    vision_heads: int = 16
    channels: int = 128
    multipliers: tuple[int, ...] = (1, 1, 2, 2, 4)

    @property
    def pixels(self) -> int:
        """Of an image's side."""
        return self.side * self.patch


JANUS_SHAPES = {
    "1b": JanusShape(),
    "7b": JanusShape(width=4096, layers=30, heads=32, feed_forward=11_008),
    "middle": JanusShape(256, 4, 4, 704, 4000, 8, 8, 1024, 64, 1, 1, 32, (1, 1, 1, 1)),
    "small": JanusShape(128, 2, 2, 352, 1024, 4, 8, 96, 64, 1, 1, 32, (1, 1, 1, 1)),
}


def janus_config(shape: JanusShape, image_token_id: int, **marks: int) -> JanusConfig:
    """The configuration of the real class.

    Args:
        marks: bos_token_id, eos_token_id, pad_token_id.
    """
    return JanusConfig(
        text_config=LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.feed_forward,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            max_position_embeddings=16_384,
            tie_word_embeddings=False,
            **marks,
        ),
        vision_config=JanusVisionConfig(
            hidden_size=shape.vision_width,
            num_hidden_layers=shape.vision_layers,
            num_attention_heads=shape.vision_heads,
            image_size=shape.pixels,
            patch_size=shape.patch,
            projection_dim=shape.width,
            num_image_tokens=shape.side**2,
        ),
        vq_config=JanusVQVAEConfig(
            num_embeddings=shape.codebook,
            base_channels=shape.channels,
            channel_multiplier=list(shape.multipliers),
            projection_dim=shape.width,
            image_token_embed_dim=shape.width,
        ),
        image_token_id=image_token_id,
        tie_word_embeddings=False,
    )


def build_janus(
    shape: JanusShape, tokenizer: PreTrainedTokenizerFast
) -> JanusForConditionalGeneration:
    """Random weights of the real class, on the default device."""
    config = janus_config(
        shape,
        tokenizer.convert_tokens_to_ids(IMAGE),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return JanusForConditionalGeneration(config)


def write_janus(shape: JanusShape, folder: Path) -> None:
    """Write the model in bfloat16, and a processor with the embedded model's tokenizer."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    with device:
        model = build_janus(shape, tokenizer)
    model.to("cpu", torch.bfloat16).save_pretrained(folder)
    sizes = TinyJanusSizes(image_size=shape.pixels, patch_size=shape.patch)
    build_processor(tokenizer, sizes).save_pretrained(folder)
