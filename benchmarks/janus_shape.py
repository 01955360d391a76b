"""Models of Janus-Pro's shapes with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from transformers import (
    JanusConfig,
    JanusForConditionalGeneration,
    JanusProcessor,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

MARKS = ("<pad>", "<bos>", "<eos>", "<boi>", "<eoi>", "<image>", "<unk>")
WORDS = ("Yes", "No", "<|User|>:", "<|Assistant|>:", "a", "red", "blue", "circle", "square", "and")


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
    "small": JanusShape(128, 2, 2, 352, 640, 4, 8, 96, 64, 1, 1, 32, (1, 1, 1, 1)),
}


def build_janus(shape: JanusShape) -> JanusForConditionalGeneration:
    """Random weights of the real class, on the default device."""
    return JanusForConditionalGeneration(
        JanusConfig(
            text_config=LlamaConfig(
                vocab_size=shape.vocabulary,
                hidden_size=shape.width,
                intermediate_size=shape.feed_forward,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                max_position_embeddings=16_384,
                bos_token_id=MARKS.index("<bos>"),
                eos_token_id=MARKS.index("<eos>"),
                pad_token_id=MARKS.index("<pad>"),
                tie_word_embeddings=False,
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
            image_token_id=MARKS.index("<image>"),
            tie_word_embeddings=False,
        )
    )


def build_processor(shape: JanusShape) -> JanusProcessor:
    """A word is a token; marks are found anywhere."""
    vocabulary = {word: index for index, word in enumerate((*MARKS, *WORDS))}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = Sequence([WhitespaceSplit(), Split("<|Assistant|>:", "isolated")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>",
            "boi_token": "<boi>",
            "eoi_token": "<eoi>",
        },
    )
    images = JanusImageProcessorPil(
        size={"height": shape.pixels, "width": shape.pixels},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return JanusProcessor(
        image_processor=images, tokenizer=tokenizer, num_image_tokens=shape.side**2
    )


def write_janus(shape: JanusShape, folder: Path) -> None:
    """Write the model in bfloat16, and its processor."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with device:
        model = build_janus(shape)
    model.to("cpu", torch.bfloat16).save_pretrained(folder)
    build_processor(shape).save_pretrained(folder)
