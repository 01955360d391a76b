"""From hidden states of the language model to what the transformer is conditioned with.

A projection, an encoder of pre-norm layers that look both ways, and two more projections: of every
token, and of their mean. There are no positions in it, and no last norm. The names are those of the
published weights. Source: DeepGen-RL.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

EPSILON = 1e-6


@dataclass(frozen=True)
class Shape:
    """Sizes of a connector.

    Attributes:
        states: values of a token that come in: chosen layers times their width.
        queries: learned embeddings; each is `query_width` wide, as the language model is.
        tokens: values of a token that come out (the transformer's joint_attention_dim).
        pooled: values of the mean (its pooled_projection_dim).
    """

    states: int = 12_288
    queries: int = 128
    query_width: int = 2048
    hidden_size: int = 2048
    intermediate_size: int = 11_946
    num_hidden_layers: int = 6
    num_attention_heads: int = 32
    tokens: int = 4096
    pooled: int = 2048

    def config(self) -> dict[str, Any]:
        """What connector/config.json says: what is not seen in the weights' shapes, and the rest
        for people."""
        inner = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        sizes = asdict(self)
        fixed = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": EPSILON}
        return {
            "connector": {**{name: sizes[name] for name in inner}, **fixed},
            "num_queries": self.queries,
        }


class Bridge(nn.Module):
    """The connector with its projections, and the queries that the language model reads.

    projector_2 and projector_3 begin at zero: an untrained bridge says nothing.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.meta_queries = nn.Parameter(torch.empty(shape.queries, shape.query_width))
        self.projector_1 = nn.Linear(shape.states, shape.hidden_size)
        self.connector = Connector(shape)
        self.projector_2 = nn.Linear(shape.hidden_size, shape.pooled)
        self.projector_3 = nn.Linear(shape.hidden_size, shape.tokens)
        nn.init.normal_(self.meta_queries, std=1 / math.sqrt(shape.query_width))
        for projector in (self.projector_2, self.projector_3):
            nn.init.zeros_(projector.weight)
            nn.init.zeros_(projector.bias)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens [B, S, tokens] and pooled [B, pooled].

        Args:
            states: [B, S, states].
            mask: [B, S] bool, false on padding, which then changes nothing; None: all are tokens
                alike, as in the published code.
        """
        hidden = self.connector(self.projector_1(states), mask)
        return self.projector_3(hidden), self.projector_2(_mean(hidden, mask))


class Connector(nn.Module):
    """The encoder's layers.

    Attributes:
        gradient_checkpointing: whether a backward pass computes what is inside a layer again.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.gradient_checkpointing = False

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        keys = None if mask is None else mask[:, None, None, :]
        again = self.gradient_checkpointing and torch.is_grad_enabled()
        for layer in self.layers:
            if again:
                hidden = checkpoint(layer, hidden, keys, use_reentrant=False)
            else:
                hidden = layer(hidden, keys)
        return hidden


class Layer(nn.Module):
    """Attention and a feed-forward network, each after a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(shape.hidden_size, eps=EPSILON)
        self.self_attn = Attention(shape)
        self.layer_norm2 = nn.LayerNorm(shape.hidden_size, eps=EPSILON)
        self.mlp = FeedForward(shape)

    def forward(self, hidden: Tensor, keys: Tensor | None) -> Tensor:
        hidden = hidden + self.self_attn(self.layer_norm1(hidden), keys)
        return hidden + self.mlp(self.layer_norm2(hidden))


class Attention(nn.Module):
    """Of every token to every token that is one."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._heads = shape.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(shape.hidden_size, shape.hidden_size) for _ in range(4)
        )
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(self, hidden: Tensor, keys: Tensor | None) -> Tensor:
        query, key, value = (
            projection(hidden).unflatten(-1, (self._heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=keys)
        found: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return found


class FeedForward(nn.Module):
    """Two linear layers with a tanh-approximated GELU between them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.fc2 = nn.Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.fc2(functional.gelu(self.fc1(hidden), approximate="tanh"))
        return found


def _mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Over tokens, of [B, S, D]."""
    if mask is None:
        return hidden.mean(1)
    own = mask[..., None].to(hidden.dtype)
    return (hidden * own).sum(1) / own.sum(1)
