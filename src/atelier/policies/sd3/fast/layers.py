"""Linear layers that have one input, as one product; so are either halves of their adapters.

Adapters stay what peft made them: separate float32 parameters with their own gradients. Folded,
what they add to a weight is added to a copy of it, in every pass anew: an input is then multiplied
once, and the sum of both is rounded to the dtype that is computed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional


class Adapter(NamedTuple):
    """What is added to a layer's output: up(down(x)) * scale. down [rank, in], up [out, rank]."""

    down: Tensor
    up: Tensor
    scale: float


class Layers(NamedTuple):
    """Layers of one input.

    Attributes:
        weights: [out, in] each, or one of all of them where they lie together in memory.
        biases: likewise.
        widths: how many outputs each has.
        adapters: of each, in their order.
        folded: whether adapters are added to the weights.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    widths: tuple[int, ...]
    adapters: tuple[tuple[Adapter, ...], ...]
    folded: bool = False


def outputs(layers: Layers, x: Tensor) -> list[Tensor]:
    """Of each layer [..., out], computed in the dtype of `x` [..., in]."""
    weight, bias = (_joined(tensors, x.dtype) for tensors in (layers.weights, layers.biases))
    downs = [one.down for adapters in layers.adapters for one in adapters]
    if not downs:
        made = functional.linear(x, weight, bias)
    else:
        product = folded if layers.folded else beside
        made = product(x, weight, bias, _joined(downs, x.dtype), _ups(layers, x.dtype))
    return list(made.split(layers.widths, dim=-1))


def beside(x: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """x weight' + bias + x down' up', all in the dtype of `x`. weight [out, in], down [rank, in],
    up [out, rank]."""
    # Added to an output of as many dimensions, a compiler leaves the sum to what comes next.
    return functional.linear(x, weight, bias) + functional.linear(functional.linear(x, down), up)


def folded(x: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The same as x (weight + up down)' + bias; `weight` and `bias` get no gradients."""
    made: Tensor = _Folded.apply(x, weight, bias, down, up)
    return made


class _Folded(torch.autograd.Function):
    """Gradients of `down` and `up` by way of their rank, not of a gradient as large as the weight,
    which would take as long as the product itself."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor
    ) -> Tensor:
        whole = torch.addmm(weight, up, down)
        ctx.save_for_backward(x, whole, down, up)
        return functional.linear(x, whole, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, Tensor, Tensor]:
        x, whole, down, up = ctx.saved_tensors
        (gradient,) = gradients
        rows, of_rows = x.flatten(0, -2), gradient.flatten(0, -2)
        of_down = (of_rows @ up).T @ rows
        of_up = of_rows.T @ (rows @ down.T)
        return gradient @ whole, None, None, of_down, of_up


def output(layers: Layers, x: Tensor) -> Tensor:
    """Of a single layer."""
    (made,) = outputs(layers, x)
    return made


def read(*modules: nn.Module, folded: bool = False) -> Layers:
    """Layers as they are now: with the adapters that are switched on, `folded` or not.

    Frozen ones are laid together in memory, once: their product then needs no copy of them, and
    their parameters are views of what holds all.

    Raises:
        TypeError: a layer is neither linear nor peft's plain adapter of one.
    """
    bases = [_base(one) for one in modules]
    return Layers(
        _together([one.weight for one in bases]),
        _together([one.bias for one in bases]),
        tuple(one.out_features for one in bases),
        tuple(_adapters(one) for one in modules),
        folded,
    )


def _base(module: nn.Module) -> nn.Linear:
    base = module.base_layer if isinstance(module, LoraLinear) else module
    if not isinstance(base, nn.Linear) or base.bias is None:
        raise TypeError(f"{type(module).__name__}: no linear layer with a bias")
    return base


def _adapters(module: nn.Module) -> tuple[Adapter, ...]:
    if not isinstance(module, LoraLinear):
        return ()
    if module.merged or module.lora_variant or any(module.lora_bias.values()):
        raise TypeError(f"{module}: only plain adapters that are not merged are known")
    if module.disable_adapters:
        return ()
    return tuple(_adapter(module, name) for name in module.active_adapters if name in module.lora_A)


def _adapter(module: Any, name: str) -> Adapter:
    down, up = module.lora_A[name].weight, module.lora_B[name].weight
    return Adapter(down, up, module.scaling[name])


def _joined(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Along the first dimension, in a dtype."""
    held = [one.to(dtype) for one in tensors]
    return held[0] if len(held) == 1 else torch.cat(held)


def _ups(layers: Layers, dtype: torch.dtype) -> Tensor:
    """The second halves of all adapters, scaled, as one weight [sum of outputs, sum of ranks]: each
    layer has its rows, each adapter its columns, and elsewhere there is nothing."""
    device = layers.weights[0].device
    rows = [
        torch.cat([(one.up * one.scale).to(dtype) for one in adapters], dim=1)
        if adapters
        else torch.empty(width, 0, dtype=dtype, device=device)
        for width, adapters in zip(layers.widths, layers.adapters, strict=True)
    ]
    return torch.block_diag(*rows)


def _together(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One tensor of all of them where none is trained, else they as they are."""
    if len(tensors) == 1 or any(one.requires_grad for one in tensors):
        return tuple(tensors)
    if not _adjoin(tensors):
        whole = torch.cat([one.detach() for one in tensors])
        for one, part in zip(tensors, whole.split([len(one) for one in tensors]), strict=True):
            one.data = part
    first = tensors[0]
    shape = (sum(len(one) for one in tensors), *first.shape[1:])
    return (first.as_strided(shape, first.stride(), first.storage_offset()),)


def _adjoin(tensors: Sequence[Tensor]) -> bool:
    """Whether each begins where the one before it ends. A module that is copied or moved to another
    device gets separate ones."""
    first = tensors[0]
    ends = accumulate(one.numel() for one in tensors[:-1])
    places = [first.storage_offset(), *(first.storage_offset() + end for end in ends)]
    memory = first.untyped_storage().data_ptr()
    return all(
        one.untyped_storage().data_ptr() == memory and one.storage_offset() == place
        for one, place in zip(tensors, places, strict=True)
    )
