"""Tiny Janus: the parts of the embedded `JanusForConditionalGeneration`, before pre-training.

All parts are of the classes that Janus-Pro checkpoints use, and the marks have the names they have
there. It draws and sees 64x64 pixels in an 8x8 grid, 64 tokens an image. Words of the scene world
are one token each, with and without the space before them; all else is spelled in bytes, so that
any text comes back as it was. Source: FocusDiff and Janus-Pro-R1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from atelier.data.words import ASKING, words_of
from atelier.policies.janus.conversation import Phrases

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"  # noqa: RUF001
IMAGE, BEGIN_IMAGE, END_IMAGE = "<image_placeholder>", "<begin_of_image>", "<end_of_image>"
ROLES = ("<|User|>", "<|Assistant|>")
LONGEST = 512  # tokens of a conversation
INITIAL = 0.05  # standard deviation of weights: the usual 0.02 is for wider models

# `<|User|>: `, the parts of the message, `<|Assistant|>:`; an image is followed by a new line.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|User|>: {% else %}<|Assistant|>:{% endif %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') or 'image' in part or 'image_url' in part %}"
    "<image_placeholder>\n"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '\n\n' }}{% else %}<｜end▁of▁sentence｜>{% endif %}"  # noqa: RUF001
    "{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>:{% endif %}"
)


@dataclass(frozen=True)
class TinyJanusSizes:
    """What decides the model's size and cost. Defaults: 2.3 M parameters."""

    image_size: int = 64
    patch_size: int = 8
    codes: int = 256
    code_width: int = 8
    vq_channels: int = 32  # its group norm wants a multiple of 32
    vq_blocks: int = 1
    width: int = 160
    feed_forward: int = 384
    layers: int = 6
    heads: int = 5
    vision_width: int = 96
    vision_layers: int = 3
    vision_heads: int = 3

    @property
    def image_tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def vq_levels(self) -> int:
        """Resolutions of the VQ tokenizer; each but the last halves the image."""
        return self.patch_size.bit_length()


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and each known word as one token, in front of which BOS is put where it is asked to.

    A byte-level BPE without merges: a word that stands in its vocabulary is taken whole.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(" ")[0][0]
    phrases = Phrases()
    words = words_of(*ASKING, "more", phrases.question, phrases.draw_again, phrases.edit)
    longer = [word for word in words if len(word) > 1]
    pieces = [*alphabet, *longer, *(space + word for word in words)]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[],
            ignore_merges=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = (BOS, EOS, PAD, IMAGE, BEGIN_IMAGE, END_IMAGE)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in special])
    tokenizer.add_tokens([AddedToken(role, normalized=False) for role in ROLES])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        model_max_length=LONGEST,
        extra_special_tokens={
            "image_token": IMAGE,
            "boi_token": BEGIN_IMAGE,
            "eoi_token": END_IMAGE,
        },
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, sizes: TinyJanusSizes | None = None, seed: int = 0
) -> JanusForConditionalGeneration:
    """The model in float32, a pure function of its arguments; untrained."""
    sizes = sizes or TinyJanusSizes()
    marks = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = JanusConfig(
        text_config=_text_config(sizes, len(tokenizer), marks),
        vision_config=_vision_config(sizes),
        vq_config=_vq_config(sizes),
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = JanusForConditionalGeneration(config)
    begin_image = tokenizer.convert_tokens_to_ids(BEGIN_IMAGE)
    # A fresh object: what is set on the one that the model has made itself is lost when saved.
    model.generation_config = GenerationConfig(
        **marks, generation_kwargs={"boi_token_id": begin_image}
    )
    return model.float().eval()


def build_processor(
    tokenizer: PreTrainedTokenizerFast, sizes: TinyJanusSizes | None = None
) -> JanusProcessor:
    """Images and text to model inputs; every image becomes one of `image_size` squared pixels."""
    sizes = sizes or TinyJanusSizes()
    images = JanusImageProcessor(
        size={"height": sizes.image_size, "width": sizes.image_size},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        min_size=sizes.patch_size,
    )
    return JanusProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
        num_image_tokens=sizes.image_tokens,
    )


def _text_config(sizes: TinyJanusSizes, vocabulary: int, marks: dict[str, int]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.feed_forward,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=LONGEST,
        initializer_range=INITIAL,
        tie_word_embeddings=True,
        **marks,
    )


def _vision_config(sizes: TinyJanusSizes) -> JanusVisionConfig:
    return JanusVisionConfig(
        hidden_size=sizes.vision_width,
        num_hidden_layers=sizes.vision_layers,
        num_attention_heads=sizes.vision_heads,
        image_size=sizes.image_size,
        patch_size=sizes.patch_size,
        mlp_ratio=2.0,
        initializer_range=INITIAL,
        projection_dim=sizes.width,
        num_image_tokens=sizes.image_tokens,
    )


def _vq_config(sizes: TinyJanusSizes) -> JanusVQVAEConfig:
    return JanusVQVAEConfig(
        embed_dim=sizes.code_width,
        num_embeddings=sizes.codes,
        latent_channels=sizes.vq_channels,
        base_channels=sizes.vq_channels,
        channel_multiplier=[1] * sizes.vq_levels,
        num_res_blocks=sizes.vq_blocks,
        projection_dim=sizes.width,
        image_token_embed_dim=sizes.width,
    )
