"""SD3's transformer beside the latents of reference images, on diffusers' own modules.

References are cut into patches as the noisy latent is, with the same table of positions, and stand
behind its tokens; only the noisy latent's tokens become a velocity. Rows of other lengths are
padded on the right and masked. Without references and padding all of it is what
SD3Transformer2DModel.forward computes, bit for bit. Source: DeepGen-RL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import SD3Transformer2DModel
from torch import Tensor, nn
from torch.nn import functional

from atelier.transfer import to_device

References = Sequence[Sequence[Tensor]]
"""Latents [C, h, w] of each row."""


def velocities(
    transformer: SD3Transformer2DModel,
    x: Sequence[Tensor],
    timestep: Tensor,
    tokens: Tensor,
    pooled: Tensor,
    mask: Tensor | None = None,
    references: References | None = None,
) -> list[Tensor]:
    """Predicted velocities of latents of any sizes, each as its latent.

    Args:
        transformer: with JointAttention as its processor (see `masked`) where anything is padded.
        x: B latents [C, h, w].
        timestep: [B].
        tokens: conditions [B, L, D].
        pooled: [B, P].
        mask: [B, L] bool, which conditions are a row's own; None: all.
        references: of each row.
    """
    beside = references or [()] * len(x)
    rows = [
        torch.cat([transformer.pos_embed(one[None])[0] for one in (latent, *others)])
        for latent, others in zip(x, beside, strict=True)
    ]
    counts = [len(row) for row in rows]
    image = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    places = torch.arange(image.shape[1], device=image.device)
    own = places < to_device(torch.tensor(counts), image.device)[:, None]
    made = _through(transformer, image, timestep, tokens, pooled, _pairs(own, counts, tokens, mask))
    size = transformer.config.patch_size
    grids = [(latent.shape[-2] // size, latent.shape[-1] // size) for latent in x]
    return [
        _unpatched(transformer, row[None, : down * across], down, across)[0]
        for row, (down, across) in zip(made, grids, strict=True)
    ]


def velocity(
    transformer: SD3Transformer2DModel,
    x: Tensor,
    timestep: Tensor,
    tokens: Tensor,
    pooled: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """The same of latents [B, C, h, w] of one size without references."""
    image = transformer.pos_embed(x).contiguous()
    pairs = None
    if mask is not None:
        own = mask.new_ones(image.shape[:2])
        pairs = _pairs(own, [image.shape[1]] * len(x), tokens, mask)
    made = _through(transformer, image, timestep, tokens, pooled, pairs)
    size = transformer.config.patch_size
    return _unpatched(transformer, made, x.shape[-2] // size, x.shape[-1] // size)


def masked(transformer: SD3Transformer2DModel) -> SD3Transformer2DModel:
    """The transformer, whose attention from now on minds a mask."""
    transformer.set_attn_processor(JointAttention())
    return transformer


class JointAttention:
    """Attention of image and text tokens in the projections of diffusers' `Attention`, with a mask,
    which its own processor takes and passes over. The second attention of SD3.5's first blocks is
    of image tokens alone."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        count = hidden_states.shape[1]
        of_image = (attn.to_q, attn.to_k, attn.to_v, attn.norm_q, attn.norm_k)
        streams = [_Stream.of(attn.heads, hidden_states, *of_image)]
        if encoder_hidden_states is not None:
            of_text = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
            norms = (attn.norm_added_q, attn.norm_added_k)
            streams.append(_Stream.of(attn.heads, encoder_hidden_states, *of_text, *norms))
        elif attention_mask is not None:
            attention_mask = attention_mask[..., :count, :count]
        query = torch.cat([one.query for one in streams], dim=2)
        mixed = functional.scaled_dot_product_attention(
            query,
            torch.cat([one.key for one in streams], dim=2),
            torch.cat([one.value for one in streams], dim=2),
            attn_mask=attention_mask,
        )
        mixed = mixed.transpose(1, 2).flatten(2).to(query.dtype)
        linear, dropout = attn.to_out
        image: Tensor = dropout(linear(mixed[:, :count]))
        if encoder_hidden_states is None:
            return image
        text = mixed[:, count:]
        return image, text if attn.context_pre_only else attn.to_add_out(text)


@dataclass(frozen=True)
class _Stream:
    """Queries, keys and values [B, heads, tokens, width] of one kind of tokens."""

    query: Tensor
    key: Tensor
    value: Tensor

    @classmethod
    def of(
        cls,
        heads: int,
        hidden: Tensor,
        to_query: nn.Module,
        to_key: nn.Module,
        to_value: nn.Module,
        norm_query: nn.Module | None,
        norm_key: nn.Module | None,
    ) -> _Stream:
        query, key, value = (
            project(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
            for project in (to_query, to_key, to_value)
        )
        return cls(
            query if norm_query is None else norm_query(query),
            key if norm_key is None else norm_key(key),
            value,
        )


def _pairs(
    own: Tensor, counts: Sequence[int], tokens: Tensor, mask: Tensor | None
) -> Tensor | None:
    """Which token may look at which [B, 1, S, S], of image and text; None where nothing is padded.

    Tokens of a row look at each other, and padding at itself, for softmax of nothing is no number.
    """
    if mask is None and len(set(counts)) == 1:
        return None
    text = own.new_ones(tokens.shape[:2]) if mask is None else mask
    real = torch.cat([own, text], dim=1)
    diagonal = torch.eye(real.shape[1], dtype=torch.bool, device=real.device)
    return ((real[:, :, None] & real[:, None, :]) | diagonal)[:, None]


def _through(
    transformer: SD3Transformer2DModel,
    image: Tensor,
    timestep: Tensor,
    tokens: Tensor,
    pooled: Tensor,
    pairs: Tensor | None,
) -> Tensor:
    """Image tokens [B, N, width] in, patches [B, N, values] out."""
    signal = transformer.time_text_embed(timestep, pooled)
    text = transformer.context_embedder(tokens)
    attention = None if pairs is None else {"attention_mask": pairs}
    for block in transformer.transformer_blocks:
        if torch.is_grad_enabled() and transformer.gradient_checkpointing:
            text, image = transformer._gradient_checkpointing_func(
                block, image, text, signal, attention
            )
        else:
            text, image = block(image, text, signal, joint_attention_kwargs=attention)
    made: Tensor = transformer.proj_out(transformer.norm_out(image, signal))
    return made


def _unpatched(
    transformer: SD3Transformer2DModel, patches: Tensor, down: int, across: int
) -> Tensor:
    """Patches [B, down * across, values] as a latent [B, C, h, w]."""
    size, channels = transformer.config.patch_size, transformer.out_channels
    grid = patches.reshape(len(patches), down, across, size, size, channels)
    ordered = grid.permute(0, 5, 1, 3, 2, 4)
    return ordered.reshape(len(patches), channels, down * size, across * size)
