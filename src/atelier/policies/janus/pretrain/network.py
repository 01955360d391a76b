"""The model's forward pass over many whole conversations at once, and the losses of the tasks.

transformers' own makes a mask of padding, and takes gaps in the positions for the seams of packed
sequences. Here rows are padded on the right, so that plain causal attention is right for all that
is predicted. A test holds this pass to the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import JanusForConditionalGeneration
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from atelier.policies.janus.conversation import IMAGE_SLOT

UNASKED = -100  # no loss there


@dataclass(frozen=True)
class Batch:
    """Rows of one task on one device: tensors of `sequences.Table`, and their images.

    Attributes:
        pictures: uint8 [B, H, W, 3] that are looked at; None without any.
        given: codes [B, N] of images that are in the context as drawn; None without any.
        drawn: codes [B, N] to be predicted; None where text is.
        width: most tokens that are predicted.
    """

    tokens: Tensor
    places: Tensor
    target: Tensor
    width: int
    pictures: Tensor | None = None
    given: Tensor | None = None
    drawn: Tensor | None = None


def embed(model: JanusForConditionalGeneration, batches: Sequence[Batch]) -> Tensor:
    """Embeddings [B, L, D] of the rows of all batches: of text and, in their places, of images."""
    tokens = torch.cat([batch.tokens for batch in batches])
    pad = model.get_input_embeddings().padding_idx
    text = model.get_input_embeddings()(tokens.masked_fill(tokens < 0, pad))
    places, images = _placed(model, batches, tokens.shape[1])
    return text.flatten(0, 1).index_copy(0, places, images.to(text.dtype)).view_as(text)


def _placed(
    model: JanusForConditionalGeneration, batches: Sequence[Batch], length: int
) -> tuple[Tensor, Tensor]:
    """Embeddings of all images [M, D], and their places [M] among the tokens of all rows."""
    seen, drawn, first = [], [], 0
    for batch in batches:
        given_at = (batch.tokens == IMAGE_SLOT).int().argmax(dim=1)
        if batch.pictures is not None:
            seen.append((batch.pictures, first, given_at))
        if batch.given is not None:
            drawn.append((batch.given, first, given_at))
        if batch.drawn is not None:
            drawn.append((batch.drawn, first, batch.target[:, 0]))
        first += len(batch.tokens)
    parts = []
    if seen:
        parts.append(look(model, torch.cat([pictures for pictures, _, _ in seen])))
    if drawn:
        codes = torch.cat([codes for codes, _, _ in drawn])
        parts.append(model.prepare_embeddings_for_image_generation(codes))
    embedded = torch.cat(parts)
    starts = [
        (row + torch.arange(len(at), device=at.device)) * length + at
        for _, row, at in (*seen, *drawn)
    ]
    within = torch.arange(embedded.shape[1], device=embedded.device)
    places = torch.cat(starts)[:, None] + within
    return places.flatten(), embedded.flatten(0, 1)


def look(model: JanusForConditionalGeneration, pictures: Tensor) -> Tensor:
    """What the language model sees of uint8 images [B, H, W, 3]: [B, N, D]."""
    vision = model.model.vision_model
    embeddings = vision.embeddings
    size, pixels = embeddings.patch_size, pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
    count, channels, height, width = pixels.shape
    # A convolution that moves by its own size is linear, and many times faster so on a GPU.
    patches = pixels.reshape(count, channels, height // size, size, width // size, size)
    patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(count, -1, channels * size * size)
    kernel = embeddings.patch_embedding
    hidden = functional.linear(patches, kernel.weight.flatten(1), kernel.bias)
    hidden = hidden + embeddings.position_embedding.weight
    for layer in vision.encoder.layers:
        hidden = layer(hidden, None)
    return model.model.aligner(vision.post_layernorm(hidden))


def read(
    model: JanusForConditionalGeneration,
    embedded: Tensor,
    places: Tensor,
    block: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Last hidden states [B, L, D] of whole conversations, in the dtype of `embedded`.

    Args:
        block: `decoder_block`, or that compiled.
    """
    language: Any = model.model.language_model
    run: Callable[..., Tensor] = block or decoder_block
    rotation = language.rotary_emb(embedded, position_ids=places)
    hidden = embedded
    for layer in language.layers:
        weights = (weight.to(hidden.dtype) for weight in _weights(layer))
        hidden = run(
            hidden,
            *rotation,
            *weights,
            language.config.num_attention_heads,
            language.config.rms_norm_eps,
        )
    return language.norm(hidden)


def decoder_block(
    hidden: Tensor,
    cosine: Tensor,
    sine: Tensor,
    first_norm: Tensor,
    attention: Tensor,
    mixing: Tensor,
    second_norm: Tensor,
    widening: Tensor,
    narrowing: Tensor,
    heads: int,
    eps: float,
) -> Tensor:
    """One layer of Llama with plainly causal attention; few large kernels.

    Args:
        hidden: [B, L, D].
        cosine, sine: [B, L, D / heads] of the rotation.
        attention: of queries, keys and values, [3 D, D].
        widening: of gate and values, [2 F, D].
    """
    count, length, width = hidden.shape
    seen = functional.rms_norm(hidden, (width,), first_norm, eps)
    split = functional.linear(seen, attention).view(count, length, 3, heads, width // heads)
    queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
    cosine, sine = cosine[:, None], sine[:, None]
    mixed = functional.scaled_dot_product_attention(
        _rotated(queries, cosine, sine), _rotated(keys, cosine, sine), values, is_causal=True
    )
    mixed = mixed.transpose(1, 2).reshape(count, length, width)
    hidden = hidden + functional.linear(mixed, mixing)
    seen = functional.rms_norm(hidden, (width,), second_norm, eps)
    gate, value = functional.linear(seen, widening).chunk(2, dim=-1)
    return hidden + functional.linear(functional.silu(gate) * value, narrowing)


def _weights(layer: LlamaDecoderLayer) -> tuple[Tensor, ...]:
    """The six tensors of a `decoder_block`."""
    own, mlp = layer.self_attn, layer.mlp
    return (
        layer.input_layernorm.weight,
        torch.cat([own.q_proj.weight, own.k_proj.weight, own.v_proj.weight]),
        own.o_proj.weight,
        layer.post_attention_layernorm.weight,
        torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        mlp.down_proj.weight,
    )


def _rotated(vectors: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = vectors.chunk(2, dim=-1)
    return vectors * cosine + torch.cat([-right, left], dim=-1) * sine


def loss(model: JanusForConditionalGeneration, hidden: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of what is predicted: image tokens or text.

    Of text the first token has half of the weight: it is the answer, the rest gives reasons
    (Janus-Pro-R1 has 0.8).
    """
    if batch.drawn is not None:
        logits = model.model.generation_head(_before(hidden, batch.target, batch.width))
        return functional.cross_entropy(logits.float().flatten(0, 1), batch.drawn.flatten())
    logits = model.lm_head(_before(hidden, batch.target, batch.width)).float()
    labels = _labels(batch.tokens, batch.target, batch.width)
    each = functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=UNASKED, reduction="none"
    )
    rest = labels[:, 1:] != UNASKED
    return 0.5 * each[:, 0].mean() + 0.5 * each[:, 1:].sum() / rest.sum().clamp(min=1)


def _before(hidden: Tensor, target: Tensor, count: int) -> Tensor:
    """Hidden states [B, count, D] that predict the tokens from the target's start on."""
    rows, length, width = hidden.shape
    place = target[:, :1] - 1 + torch.arange(count, device=hidden.device)
    row = torch.arange(rows, device=hidden.device)[:, None]
    index = (row * length + place.clamp(max=length - 1)).flatten()
    return hidden.flatten(0, 1).index_select(0, index).view(rows, count, width)


def _labels(tokens: Tensor, target: Tensor, width: int) -> Tensor:
    place = target[:, :1] + torch.arange(width, device=tokens.device)
    own = tokens.gather(1, place.clamp(max=tokens.shape[1] - 1))
    return torch.where(place < target[:, 1:], own, UNASKED)
