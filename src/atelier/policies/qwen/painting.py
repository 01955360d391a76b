"""Images of prompts and completions, by the encoder as it is and the frozen pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from atelier.policies.language.adapters import adapter_off, trained
from atelier.policies.language.reference import frozen_copy
from atelier.policies.qwen.chat import Chat, ChatPrompt
from atelier.policies.qwen.conditioning import Conditioned, Conditioning
from atelier.policies.qwen.environment import Environment, Sampling
from atelier.policies.qwen.module import QwenModule
from atelier.policies.qwen.negative import Negative
from atelier.policies.qwen.reading import Read


class Painter:
    """Paints what is written.

    Args:
        module: whose encoder says what the transformer sees, with whatever it has learned.
        negative: what guidance leads away from; None where there is no guidance.
    """

    def __init__(
        self,
        module: QwenModule,
        conditioning: Conditioning,
        environment: Environment,
        negative: Negative | None,
    ) -> None:
        self._module = module
        self._conditioning = conditioning
        self._environment = environment
        self._negative = negative

    def paint(
        self,
        prompts: Sequence[Read],
        completions: Sequence[Sequence[int]] | None,
        keys: Sequence[int],
        sampling: Sampling,
    ) -> np.ndarray:
        """Images uint8 [B, H, W, 3].

        Args:
            completions: tokens without padding; None: of the prompts alone.
            keys: one a row, of the noise that an image begins with.

        Raises:
            ConfigError: a completion would be cut before it reaches the transformer.
        """
        read = [one.chat for one in prompts]
        conditioned = self._conditioning(self._module.encoder, read, completions)
        sources = [one.source for one in prompts if one.source is not None]
        return self._environment.images(
            conditioned, keys, sampling, self._negative, sources or None
        )


def negative_of(
    module: QwenModule, chat: Chat, conditioning: Conditioning, dtype: torch.dtype
) -> Negative:
    """The negative prompt by the encoder as it is now, before it is trained: without its adapter,
    or by a frozen copy where there are source images to come.

    Args:
        dtype: what the module computes in, and a copy is held in: it is never trained.
    """
    if any("lora_" in name for name in trained(module)):

        def by_base(prompts: Sequence[ChatPrompt]) -> Conditioned:
            with adapter_off(module):
                return conditioning(module.encoder, prompts)

        return Negative(chat, by_base)
    source = frozen_copy(module) if chat.edits else module
    if chat.edits:
        source.language_model.to(dtype)
        source.encoder.lm_head = nn.Identity()  # conditions are hidden states
    encoder = source.encoder
    negative = Negative(chat, lambda prompts: conditioning(encoder, prompts))
    if not chat.edits:
        negative.of()  # made now, and kept
    return negative
