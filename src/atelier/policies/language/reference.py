"""The log-probs of the policy before training."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from atelier.policies.language.adapters import adapter_off, trained
from atelier.policies.language.module import LanguageModule

ModuleT = TypeVar("ModuleT", bound=LanguageModule)


class Reference:
    """The policy as it was: a frozen copy of what is trained, or the module without its adapter.

    Whatever embeds the context and the targets is the reference's own, too.

    Args:
        module: gives log-probs of what it is called with.
    """

    def __init__(self, module: LanguageModule) -> None:
        self._module = module
        has_adapter = any("lora_" in name for name in trained(module))
        self._copy = None if has_adapter else frozen_copy(module)

    @torch.no_grad()
    def log_probs(self, segment: Any, module: nn.Module | None = None) -> Tensor:
        """[B, N] float32.

        Args:
            segment: what the module takes.
            module: what an engine wraps the module in, where its parameters are not whole.
        """
        if self._copy is not None:
            return self._copy(segment)
        with adapter_off(self._module):
            return (module or self._module)(segment)


def frozen_copy(module: ModuleT) -> ModuleT:
    """What the module is now, to compare with later; what is never trained is shared, not
    copied."""
    shared = module.frozen_parts().values()
    reference = copy.deepcopy(module, memo={id(part): part for part in shared})
    return reference.requires_grad_(False)
