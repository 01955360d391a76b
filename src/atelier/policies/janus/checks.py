"""Whether the parts of a Janus checkpoint fit together."""

from __future__ import annotations

import math
from typing import Any

from atelier.errors import ConfigError

ANSWERS = (("Yes", "No"), ("yes", "no"))


def boi_of(tokenizer: Any) -> int:
    """Id of the mark that begins an image."""
    return int(tokenizer.convert_tokens_to_ids(tokenizer.boi_token))


def answers_of(tokenizer: Any) -> tuple[int, int]:
    """Ids of yes and no as an answer begins with them.

    Raises:
        ConfigError: they are no single tokens.
    """
    for words in ANSWERS:
        ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
        if all(len(one) == 1 and one[0] != tokenizer.unk_token_id for one in ids):
            return ids[0][0], ids[1][0]
    raise ConfigError(
        "Yes and No are no single tokens of the checkpoint's tokenizer: it cannot judge its own "
        "images"
    )


def require_tokens(where: str, tokenizer: Any) -> None:
    """Raises ConfigError where the tokenizer lacks a mark that a conversation needs."""
    for name in ("boi_token", "eoi_token", "image_token", "bos_token", "eos_token", "pad_token"):
        token = getattr(tokenizer, name, None)
        known = token is not None and token in tokenizer.get_vocab()
        if not known:
            raise ConfigError(
                f"{where}: its tokenizer has no {name}"
                + (f": {token!r} is not in its vocabulary" if token else "")
                + "; boi_token, eoi_token and image_token are its extra_special_tokens"
            )


def require_whole(where: str, config: Any, processor: Any) -> None:
    """Raises ConfigError where two parts of a checkpoint disagree about a size."""
    vision, vq, width = config.vision_config, config.vq_config, config.text_config.hidden_size
    tokens = vision.num_image_tokens
    side = math.isqrt(tokens)
    cut = 2 ** (len(vq.channel_multiplier) - 1)
    size = processor.image_processor.size
    facts = [
        (side * side == tokens, f"{tokens} image tokens make no square"),
        (
            side * vision.patch_size == vision.image_size,
            f"{tokens} image tokens of {vision.patch_size} pixels make no image of "
            f"{vision.image_size} pixels",
        ),
        (
            cut == vision.patch_size,
            f"its image tokenizer reduces {cut} times, its patches are {vision.patch_size} wide",
        ),
        (
            processor.num_image_tokens == tokens,
            f"its processor has {processor.num_image_tokens} tokens an image, its model {tokens}",
        ),
        (
            size["height"] == size["width"] == vision.image_size,
            f"its image processor makes {size['height']}x{size['width']} pixels, its model sees "
            f"{vision.image_size}",
        ),
        *(
            (found == width, f"{name} is {found}, its language model {width} wide")
            for name, found in (
                ("vision_config.projection_dim", vision.projection_dim),
                ("vq_config.projection_dim", vq.projection_dim),
                ("vq_config.image_token_embed_dim", vq.image_token_embed_dim),
            )
        ),
    ]
    for fits, otherwise in facts:
        if not fits:
            raise ConfigError(f"{where}: {otherwise}; mend its config.json or its processor's")
