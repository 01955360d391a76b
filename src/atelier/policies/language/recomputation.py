"""Less memory for more time in a replay: layers and logits that are computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recompute_layers(language_model: Any) -> None:
    """Have the layers of a model of transformers computed again in the backward pass.

    What the library's own switch calls, without its hook on the embeddings.
    """
    language_model._set_gradient_checkpointing(
        enable=True, gradient_checkpointing_func=partial(checkpoint, use_reentrant=False)
    )


@contextmanager
def recomputing(language_model: Any, wanted: bool) -> Iterator[None]:
    """Inside, its layers are: the library does so in training mode only. They have no dropout."""
    language_model.train(wanted and torch.is_grad_enabled())
    try:
        yield
    finally:
        language_model.eval()


def in_chunks(compute: Callable[[slice], Tensor], count: int, size: int) -> Tensor:
    """compute(part) [B, n] of all parts of `count` places, one after the other, side by side.

    With gradients, each part is computed again in the backward pass: logits are the largest tensor
    there is, and those of one part exist at a time.
    """
    parts = [slice(start, start + size) for start in range(0, count, size)]
    if not torch.is_grad_enabled() or count <= size:
        return torch.cat([compute(one) for one in parts], dim=1)
    return torch.cat([checkpoint(compute, one, use_reentrant=False) for one in parts], dim=1)
