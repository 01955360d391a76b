"""Tiny judge: the parts of the embedded Qwen2.5-VL, before training.

All parts are of the classes that real checkpoints use, so that transformers and vLLM load it like
one. It looks at 64x64 pixels in 8x8 patches, 2x2 of which make an image token: 16 tokens an image.
Words of the questions are one token each, everything else is spelled in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import AddedToken, pre_tokenizers
from torch import Tensor
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from atelier.data.words import ASKING, words_of

END_OF_TEXT, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
SPECIAL = (END_OF_TEXT, BEGIN, END, VISION_START, VISION_END, IMAGE, VIDEO)

# A message is `<|im_start|>role`, newline, its parts in their order, `<|im_end|>`, newline.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') or 'image' in part or 'image_url' in part %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyJudgeSizes:
    """What decides the model's size and cost. Defaults: 2.2 M parameters."""

    image_size: int = 64
    patch_size: int = 8
    width: int = 128
    feed_forward: int = 384
    vision_layers: int = 4
    vision_heads: int = 4
    layers: int = 4
    heads: int = 2

    @property
    def image_tokens(self) -> int:
        return (self.image_size // (2 * self.patch_size)) ** 2


def build_model(
    tokenizer: Qwen2Tokenizer, sizes: TinyJudgeSizes | None = None, seed: int = 0
) -> Qwen2_5_VLForConditionalGeneration:
    """The model in float32, a pure function of its arguments; untrained."""
    sizes = sizes or TinyJudgeSizes()
    token = tokenizer.convert_tokens_to_ids
    third = sizes.width // sizes.heads // 2 // 8
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.width,
        "intermediate_size": sizes.feed_forward,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.heads,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [2 * third, 3 * third, 3 * third],
        },
        "bos_token_id": token(END_OF_TEXT),
        "eos_token_id": token(END),
        "pad_token_id": token(END_OF_TEXT),
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": sizes.vision_layers,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.feed_forward,
        "num_heads": sizes.vision_heads,
        "patch_size": sizes.patch_size,
        "window_size": sizes.image_size,
        "fullatt_block_indexes": list(range(sizes.vision_layers)),
        "out_hidden_size": sizes.width,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token(IMAGE),
        video_token_id=token(VIDEO),
        vision_start_token_id=token(VISION_START),
        vision_end_token_id=token(VISION_END),
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
    return model.float().eval()


def build_tokenizer() -> Qwen2Tokenizer:
    """Bytes, and one token for each word that questions are made of, with the space before it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={piece: index for index, piece in enumerate(alphabet)},
        merges=[],
        unk_token=None,
        eos_token=END,
        pad_token=END_OF_TEXT,
        model_max_length=1024,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    known = words_of(*ASKING, "user assistant system")
    words = [AddedToken(w, single_word=True, lstrip=True, normalized=False) for w in known]
    tokenizer.add_tokens(words)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_processor(
    tokenizer: Qwen2Tokenizer, sizes: TinyJudgeSizes | None = None
) -> Qwen2_5_VLProcessor:
    """Images and chat to model inputs; every image becomes one of `image_size` squared pixels."""
    sizes = sizes or TinyJudgeSizes()
    pixels = {"shortest_edge": sizes.image_size**2, "longest_edge": sizes.image_size**2}
    images: dict[str, Any] = {"size": pixels, "patch_size": sizes.patch_size}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**images),
        video_processor=Qwen2VLVideoProcessor(**images),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )


def conversation(question: str) -> str:
    """What the model reads before it answers: an image and a question."""
    image = f"{VISION_START}{IMAGE}{VISION_END}"
    return f"{BEGIN}user\n{image}{question}{END}\n{BEGIN}assistant\n"


def patches(images: Tensor, patch_size: int = 8) -> Tensor:
    """Model input of uint8 `images` [N, H, W, 3]: float [N * patches, 3 * 2 * patch**2].

    What the image processor makes of them, where images have the size the model looks at.
    """
    processor = Qwen2VLImageProcessor(patch_size=patch_size)
    mean, std = (
        torch.tensor(values, device=images.device).view(1, 3, 1, 1)
        for values in (processor.image_mean, processor.image_std)
    )
    pixels = (images.permute(0, 3, 1, 2).float() / 255 - mean) / std
    count, _, height, width = pixels.shape
    rows, columns = height // patch_size // 2, width // patch_size // 2
    # Image, 2x2 blocks in reading order, patches of a block, then channel and pixel of a patch.
    parts = pixels.reshape(count, 3, rows, 2, patch_size, columns, 2, patch_size)
    parts = parts.permute(0, 2, 5, 3, 6, 1, 4, 7)
    twice = parts.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)  # a frame, and a still one
    return twice.reshape(count * rows * columns * 4, 3 * 2 * patch_size**2)
