"""Whether modules still hold what they held: whoever keeps something made of it asks first.

Weights are trained, averaged and loaded in place, so what was made of their memory stays right.
It does not where a tensor or a module is replaced, a weight gets other memory (`.data`, `.to`), or
an adapter is added, merged, scaled, chosen or switched.
"""

from __future__ import annotations

import operator
from itertools import chain
from typing import Any

from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn


class Held:
    """What a module holds now, its submodules included. It keeps all of that alive, so that nothing
    else can pass for it."""

    def __init__(self, module: nn.Module) -> None:
        modules = [*module.modules()]
        self._places = [
            place
            for one in modules
            for place in (one._modules, one._parameters, one._buffers)
            if place
        ]
        self._values = self._now()
        self._tensors = [one for one in self._values if isinstance(one, Tensor)]
        self._addresses = self._in_memory()
        self._adapted = [one for one in modules if isinstance(one, LoraLinear)]

    def is_same(self) -> bool:
        """Whether it still is what the module holds, in the same memory."""
        now = self._now()
        return (
            len(now) == len(self._values)
            and all(map(operator.is_, now, self._values))
            and self._in_memory() == self._addresses
        )

    def state(self) -> tuple[Any, ...]:
        """What else matters, and comes and goes: adapters and what is trained. Hashable."""
        return (
            tuple(map(_adapter_state, self._adapted)),
            tuple([one.requires_grad for one in self._tensors]),
        )

    def _now(self) -> list[Any]:
        return [*chain.from_iterable([place.values() for place in self._places])]

    def _in_memory(self) -> list[int]:
        return [one.data_ptr() for one in self._tensors]


def _adapter_state(module: LoraLinear) -> tuple[Any, ...]:
    names = module.active_adapters
    scales = [(name, module.scaling.get(name)) for name in names]
    return (module.disable_adapters, module.merged, *scales)
