"""Which token a draw falls on: a function of its key, its place and the distribution alone.

Every sample has one uniform number a token, from a generator of its own, so what it draws depends
neither on the batch it is in nor on how many ranks there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from atelier.data.keys import key
from atelier.policies.base import Sample


def token_key(seed: int, step: int, sample: Sample) -> int:
    """Of all the tokens that a sample draws in a step."""
    rest = (sample.round,) if sample.round else ()
    return key("tokens", seed, step, sample.index, *rest)


def uniforms(keys: Sequence[int], count: int) -> Tensor:
    """[B, count] float64 in [0, 1), on the CPU. The first ones do not depend on `count`."""
    return torch.stack([_of_key(one, count) for one in keys])


def _of_key(key: int, count: int) -> Tensor:
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(key))


def token_at(logits: Tensor, uniform: Tensor) -> Tensor:
    """The token [B] at which the cumulative softmax(logits [B, V]) passes uniform [B].

    Logits of -inf are never drawn.
    """
    chances = logits.double().softmax(-1)
    reached = cumulative(chances)
    passed = (reached > uniform[:, None] * reached[:, -1:]) & (chances > 0)
    # Rounding may leave nothing above a number that is next to 1.
    first, likeliest = passed.int().argmax(-1), chances.argmax(-1)
    return torch.where(passed.any(-1), first, likeliest)


def cumulative(values: Tensor) -> Tensor:
    """Prefix sums along the last dimension [..., V].

    By two small triangular products: the cumulative sum of a GPU has no repeatable form.
    """
    size = values.shape[-1]
    width = math.isqrt(max(size - 1, 0)) + 1
    padding = -size % width
    blocks = torch.nn.functional.pad(values, (0, padding)).unflatten(-1, (-1, width))
    within = blocks @ _triangle(width, values)
    totals = within[..., -1]
    before = totals @ _triangle(totals.shape[-1], values) - totals
    return (within + before[..., None]).flatten(-2)[..., :size]


def _triangle(size: int, like: Tensor) -> Tensor:
    return torch.ones(size, size, dtype=like.dtype, device=like.device).triu()
