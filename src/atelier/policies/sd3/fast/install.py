"""The `forward` of diffusers' blocks replaced by one that runs on their tensors.

Everything else is as it was: modules and their parameters, their names and gradients, adapters and
their switch, recomputation. So whatever saves, loads, averages, shards optimizers or exports need
not know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from diffusers import SD3Transformer2DModel
from diffusers.models.normalization import RMSNorm
from torch import Tensor, nn

from atelier.errors import ConfigError
from atelier.policies.sd3.fast.block import EPSILON, Block, run_block
from atelier.policies.sd3.fast.reading import Reading

Run = Callable[[Block, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor | None, Tensor]]

# Kinds of blocks, shapes, with and without gradients and adapter: each is a graph of its own.
GRAPHS = 64


def make_fast(
    transformer: SD3Transformer2DModel,
    compiled: bool,
    any_length: bool = False,
    folded: bool = False,
) -> SD3Transformer2DModel:
    """The transformer, in place, with blocks that compute the same in fewer kernels.

    Args:
        compiled: by Inductor, once a kind of blocks and shape.
        any_length: whether texts of all lengths share what is compiled.
        folded: whether adapters are added to the weights (layers.py).

    Raises:
        ConfigError: its blocks are of a kind that is not known.
    """
    for name, module in transformer.named_modules():
        if name.endswith((".norm_q", ".norm_k", ".norm_added_q", ".norm_added_k")):
            _require_known(name, module)
    run: Run = _compiled(any_length) if compiled else run_block
    for block in transformer.transformer_blocks:
        block.forward = partial(_forward, block, run, Reading(folded))
    return transformer


def _require_known(name: str, norm: nn.Module) -> None:
    if not isinstance(norm, RMSNorm) or norm.eps != EPSILON:
        raise ConfigError(
            f"policy.transformer: fast does not know the {type(norm).__name__} of {name} in this "
            "model; use stock"
        )


def _compiled(any_length: bool) -> Run:
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, GRAPHS)
    # Chains of elementwise operations are computed again where the backward pass needs what they
    # make, instead of keeping it: 42.2 GiB become 36.6 at the same speed (benchmarks/README.md).
    recomputed = torch._functorch.config
    recomputed.ban_recompute_materialized_backward = False
    recomputed.ban_recompute_used_far_apart = False
    run: Run = torch.compile(run_block, fullgraph=True, dynamic=False)
    return partial(_of_any_length, run) if any_length else run


def _of_any_length(
    run: Run, block: Block, image: Tensor, text: Tensor, signal: Tensor, mask: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    torch._dynamo.maybe_mark_dynamic(text, 1)
    if mask is not None:
        torch._dynamo.maybe_mark_dynamic(mask, (2, 3))
    return run(block, image, text, signal, mask)


def _forward(
    block: nn.Module,
    run: Run,
    reading: Reading,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Of a JointTransformerBlock, in the dtype of `hidden_states`. Weights of another one are cast
    where they are used; autocast would cast to and fro between what is fused here."""
    mask = _mask(**joint_attention_kwargs or {})
    with torch.autocast(hidden_states.device.type, enabled=False):
        return run(reading.of(block), hidden_states, encoder_hidden_states, temb, mask)


def _mask(attention_mask: Tensor | None = None) -> Tensor | None:
    """Of what else an attention may be told, nothing is known."""
    return attention_mask
