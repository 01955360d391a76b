"""A segment's log-probs with gradients, and those of the policy before training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atelier.policies.janus.module import JanusModule, Segment
from atelier.policies.janus.trainable import adapter_off, frozen_copy, trained


class Reference:
    """The policy as it was: a frozen copy of what is trained, or the module without its adapter.

    The reference embeds the context and the targets by its own tables.
    """

    def __init__(self, module: JanusModule) -> None:
        self._module = module
        has_adapter = any("lora_" in name for name in trained(module))
        self._copy = None if has_adapter else frozen_copy(module)

    @torch.no_grad()
    def log_probs(self, segment: Segment, module: nn.Module | None = None) -> Tensor:
        """[B, N] float32.

        Args:
            module: what an engine wraps the module in, where its parameters are not whole.
        """
        if self._copy is not None:
            return self._copy(segment)
        with adapter_off(self._module):
            return (module or self._module)(segment)


def inner(module: nn.Module) -> JanusModule:
    """The module inside of what engines wrap around it."""
    while not isinstance(module, JanusModule):
        module = module.module  # type: ignore[assignment]
    return module
