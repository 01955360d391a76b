"""Who may look at whom, as the mask that the language model takes as it is.

Decoding and replay both make their masks here, so they cannot disagree; and no version of the
library has a say in what padding means.
"""

from __future__ import annotations

import torch
from torch import Tensor


def visible(keys: Tensor, first: int | Tensor, queries: int) -> Tensor:
    """[R, 1, queries, S] bool: the query at place first + i sees the keys up to its own that are
    not hidden, and itself.

    Itself always: a padded query that saw nothing would be 0/0, and what it makes of itself is
    hidden from all others.

    Args:
        keys: [R, S] bool, false where hidden.
        first: place of the first query, a number or a tensor on the keys' device.
    """
    place = torch.arange(keys.shape[1], device=keys.device)
    own = torch.arange(queries, device=keys.device) + first
    before = place[None, :] <= own[:, None]
    itself = place[None, :] == own[:, None]
    return (before & keys[:, None, None, :]) | itself


def for_implementation(mask: Tensor, implementation: str) -> Tensor:
    """`sdpa` takes booleans; `eager` adds the mask to its scores."""
    if implementation != "eager":
        return mask
    hidden = torch.finfo(torch.float32).min
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, hidden)


def positions(padding: Tensor, first: int | Tensor, count: int) -> Tensor:
    """[R, count] rotary positions of the places first ... first + count - 1: they count from a
    row's first token on, so that padding moves nothing. Hidden tokens are counted.

    Args:
        padding: [R, 1] pads on the left.
    """
    place = torch.arange(count, device=padding.device) + first
    return (place[None, :] - padding).clamp(min=0)
