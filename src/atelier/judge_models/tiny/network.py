"""A small Qwen2.5-VL's forward pass for many texts at once, about images of one size.

The plain one takes images one after another, because theirs may differ in size. A test holds this
one to it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionAttention

from atelier.judge_models.tiny.model import patches


def text_logits(
    model: Qwen2_5_VLForConditionalGeneration, images: Tensor, tokens: Tensor, start: int
) -> Tensor:
    """Logits [N, L, vocabulary] of the token behind each place; arguments of `last_hidden`."""
    return model.lm_head(last_hidden(model, tokens, images, start))


def last_hidden(
    model: Qwen2_5_VLForConditionalGeneration,
    tokens: Tensor,
    images: Tensor | None = None,
    start: int = 0,
) -> Tensor:
    """Hidden states [N, L, D] after the last norm.

    Args:
        tokens: [N, L], padded on the right.
        images: uint8 [N, H, W, 3]; None: of text alone.
        start: place of the image's first token, the same in all.
    """
    embedded = model.get_input_embeddings()(tokens)
    if images is None:
        places = torch.arange(tokens.shape[1], device=tokens.device).repeat(3, 1)
    else:
        seen = see(model, images)
        end = start + seen.shape[1]
        embedded = torch.cat(
            [embedded[:, :start], seen.to(embedded.dtype), embedded[:, end:]], dim=1
        )
        side = round(seen.shape[1] ** 0.5)
        places = _places(start, side, tokens.shape[1], tokens.device)
    return model.model.language_model(
        inputs_embeds=embedded,
        position_ids=places.unsqueeze(1).expand(3, len(tokens), -1),
        use_cache=False,
    ).last_hidden_state


def see(model: Qwen2_5_VLForConditionalGeneration, images: Tensor) -> Tensor:
    """Image tokens [N, tokens, width] of square images that one attention window holds."""
    visual, count = model.model.visual, len(images)
    kernel = visual.patch_embed.proj.weight  # a convolution that moves by its own size: linear,
    flat = patches(images, visual.patch_size)  # and many times faster so on a GPU
    hidden = functional.linear(flat, kernel.flatten(1))
    per_image = len(hidden) // count
    rotation = _rotation(model, images, per_image)
    for block in visual.blocks:
        hidden = hidden + _attend(block.attn, block.norm1(hidden), rotation, count)
        hidden = hidden + block.mlp(block.norm2(hidden))
    return visual.merger(hidden).reshape(count, per_image // 4, -1)


def _attend(
    attention: Qwen2_5_VLVisionAttention,
    hidden: Tensor,
    rotation: tuple[Tensor, Tensor],
    count: int,
) -> Tensor:
    length, heads = len(hidden), attention.num_heads
    queries, keys, values = (
        attention.qkv(hidden).reshape(length, 3, heads, -1).permute(1, 0, 2, 3).unbind(0)
    )
    queries, keys = _rotated(queries, rotation), _rotated(keys, rotation)
    queries, keys, values = (
        part.reshape(count, length // count, heads, -1).transpose(1, 2)
        for part in (queries, keys, values)
    )
    mixed = functional.scaled_dot_product_attention(queries, keys, values)
    return attention.proj(mixed.transpose(1, 2).reshape(length, -1))


def _rotation(
    model: Qwen2_5_VLForConditionalGeneration, images: Tensor, per_image: int
) -> tuple[Tensor, Tensor]:
    """Cosine and sine [N * patches, 1, head width] of every patch's row and column."""
    side = round(per_image**0.5)
    grid = torch.arange(side, device=images.device)
    rows, columns = torch.meshgrid(grid, grid, indexing="ij")
    places = torch.stack([rows, columns], dim=-1).reshape(side // 2, 2, side // 2, 2, 2)
    places = places.permute(0, 2, 1, 3, 4).reshape(per_image, 2)  # in the order of `patches`
    vision = model.config.vision_config
    width = vision.hidden_size // vision.num_heads
    half = torch.arange(0, width // 2, 2, device=images.device, dtype=torch.float32)
    angles = (places.unsqueeze(-1) / 10_000 ** (half / (width // 2))).reshape(per_image, -1)
    angles = angles.repeat(len(images), 2).unsqueeze(1)
    return angles.cos(), angles.sin()


def _rotated(vectors: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    left, right = vectors.float().chunk(2, dim=-1)
    return (vectors * cosine + torch.cat([-right, left], dim=-1) * sine).to(vectors.dtype)


def _places(start: int, side: int, length: int, device: torch.device) -> Tensor:
    """Places [3, length] of tokens: time, row and column in an image; behind it one more each."""
    text = torch.arange(length, device=device)
    places = text.repeat(3, 1)
    grid = torch.arange(side, device=device)
    end = start + side * side
    places[0, start:end] = start
    places[1, start:end] = start + grid.repeat_interleave(side)
    places[2, start:end] = start + grid.repeat(side)
    places[:, end:] = text[: length - end] + start + side
    return places
