"""What is trained: a language model whose one forward pass gives log-probs.

Engines (DDP, DeepSpeed) hook into `forward`, so all that is differentiated goes through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from torch import nn

from atelier.policies.language.recomputation import recompute_layers


class LanguageModule(nn.Module, ABC):
    """A model of transformers, always in eval mode: it has no dropout to switch, and what is frozen
    in it must not change its ways. A family's own says what `forward` makes of its segments.

    Args:
        model: its parameters are this module's.
        gradient_checkpointing: recompute the language model's layers in the backward pass.
        logits_chunk: tokens whose logits exist at once in a replay: rows x chunk x vocabulary.
    """

    held_as: ClassVar[str]
    """What the model is called in the module, and so in the names of its parameters."""

    def __init__(
        self, model: nn.Module, gradient_checkpointing: bool = False, logits_chunk: int = 64
    ) -> None:
        super().__init__()
        self.add_module(self.held_as, model)
        self._logits_chunk = logits_chunk
        self._checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            recompute_layers(self.language_model)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stays in eval mode, whatever an engine wants."""
        return super().train(False)

    @property
    def model(self) -> Any:
        return getattr(self, self.held_as)

    @property
    def language_model(self) -> Any:
        return self.model.model.language_model

    @abstractmethod
    def frozen_parts(self) -> dict[str, nn.Module]:
        """What of the model is never trained, by name."""
