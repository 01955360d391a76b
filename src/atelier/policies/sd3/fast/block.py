"""What diffusers' JointTransformerBlock computes, of tensors alone, so that a compiler sees all.

Between its products there are only chains of elementwise operations and sums over a row, which
Inductor makes few kernels of: norm and modulation; the norm of queries and keys, written where
image and text lie side by side; GELU; gate and sum. Norms and modulations are float32, and what
goes into a product is rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from atelier.policies.sd3.fast.layers import Layers, output, outputs

EPSILON = 1e-6  # of all norms of a block


class Attention(NamedTuple):
    """What one kind of tokens attends with.

    Attributes:
        heads: how many.
        project: to queries, keys and values.
        norms: weights [width] of the norms of a head's queries and keys; None: it has none.
    """

    heads: int
    project: Layers
    norms: tuple[Tensor, Tensor] | None


class Following(NamedTuple):
    """What follows the attention: its output, and a feed-forward network."""

    out: Layers
    widen: Layers
    narrow: Layers


class Image(NamedTuple):
    """What is applied to image tokens; `second` is an attention of theirs alone, and its output."""

    modulation: Layers
    attention: Attention
    following: Following
    second: tuple[Attention, Layers] | None


class Text(NamedTuple):
    """What is applied to text tokens; without `following` they end with the attention."""

    modulation: Layers
    attention: Attention
    following: Following | None


class Block(NamedTuple):
    image: Image
    text: Text


class Modulation(NamedTuple):
    """What the signal does to tokens before a layer and behind it, [B, 1, D] each."""

    shift: Tensor
    scale: Tensor
    gate: Tensor


def run_block(
    block: Block, image: Tensor, text: Tensor, signal: Tensor, mask: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Text and image tokens behind a block; None as text, where that ends with the attention.

    Args:
        image: [B, N, D], in the dtype that everything is computed in.
        text: [B, L, D].
        signal: of time and pooled text [B, D].
        mask: [B, 1, N + L, N + L] bool, which token may look at which; None: all at all.
    """
    ours, others = block.image, block.text
    count, signal = image.shape[1], functional.silu(signal)
    around, around_feeding, *around_second = _modulations(ours.modulation, signal)
    around_text, *around_text_feeding = _modulations(others.modulation, signal)
    normed = layer_normed(image)
    of_image = _heads(ours.attention, _modulated(normed, around, image.dtype))
    of_text = _heads(others.attention, _modulated(layer_normed(text), around_text, text.dtype))
    mixed = _attended([of_image, of_text], mask)

    image = image + around.gate * output(ours.following.out, mixed[:, :count])
    if ours.second is not None:
        attention, out = ours.second
        again = _heads(attention, _modulated(normed, around_second[0], image.dtype))
        alone = None if mask is None else mask[..., :count, :count]
        image = image + around_second[0].gate * output(out, _attended([again], alone))
    image = _fed(ours.following, image, around_feeding)
    if others.following is None:
        return None, image
    text = text + around_text.gate * output(others.following.out, mixed[:, count:])
    return _fed(others.following, text, around_text_feeding[0]), image


def _modulations(layers: Layers, signal: Tensor) -> list[Modulation]:
    """Of the attention, the feed-forward network and the second attention, as far as there are
    these."""
    parts = output(layers, signal)[:, None].split(signal.shape[-1], dim=-1)
    if len(parts) == 2:  # diffusers' AdaLayerNormContinuous: the scale is first, nothing follows
        scale, shift = parts
        return [Modulation(shift, scale, torch.ones_like(scale))]
    return [Modulation(*parts[start : start + 3]) for start in range(0, len(parts), 3)]


def layer_normed(x: Tensor) -> Tensor:
    """Float32."""
    return functional.layer_norm(x.float(), x.shape[-1:], eps=EPSILON)


def _modulated(normed: Tensor, by: Modulation, dtype: torch.dtype) -> Tensor:
    return (normed * (1 + by.scale.float()) + by.shift.float()).to(dtype)


def _heads(attention: Attention, x: Tensor) -> list[Tensor]:
    """Queries, keys and values [B, tokens, heads, width]."""
    made = [one.unflatten(-1, (attention.heads, -1)) for one in outputs(attention.project, x)]
    if attention.norms is None:
        return made
    query, key, value = made
    of_query, of_key = attention.norms
    return [head_normed(query, of_query), head_normed(key, of_key), value]


def head_normed(x: Tensor, weight: Tensor) -> Tensor:
    """In the dtype of `x`, rounded once."""
    exact = x.float()
    size = exact.square().mean(-1, keepdim=True)
    return (exact * torch.rsqrt(size + EPSILON) * weight.float()).to(x.dtype)


def _attended(streams: list[list[Tensor]], mask: Tensor | None) -> Tensor:
    """[B, tokens, D] of all kinds of tokens side by side."""
    joined = (torch.cat(kind, dim=1) for kind in zip(*streams, strict=True))
    query, key, value = (one.transpose(1, 2) for one in joined)
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return mixed.transpose(1, 2).flatten(2)


def _fed(following: Following, x: Tensor, by: Modulation) -> Tensor:
    inner = output(following.widen, _modulated(layer_normed(x), by, x.dtype))
    return x + by.gate * output(following.narrow, functional.gelu(inner, approximate="tanh"))
