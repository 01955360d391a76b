"""What a policy that writes reads, writes and paints with, beside its weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from atelier.config.sections.policy_parts import Dtype
from atelier.data.prompts import Prompt
from atelier.policies.precision import computing_in
from atelier.policies.qwen.chat import Chat, ChatPrompt
from atelier.policies.qwen.environment import Environment
from atelier.policies.qwen.generation import Completions, Writing, write
from atelier.policies.qwen.inputs import Inputs, inputs_of
from atelier.policies.qwen.module import QwenModule
from atelier.policies.qwen.painting import Painter
from atelier.policies.qwen.reading import Read, read


@dataclass(frozen=True)
class Parts:
    """See the module."""

    module: QwenModule
    chat: Chat
    writing: Writing
    environment: Environment
    painter: Painter
    device: torch.device
    dtype: Dtype

    def autocast(self) -> AbstractContextManager[None]:
        """The same in rollout, replay and for the image."""
        return computing_in(self.dtype, self.device)

    def read(self, prompts: Sequence[Prompt]) -> list[Read]:
        """Raises DataError as reading.read does."""
        return read(prompts, self.chat, self.environment.side)

    def inputs(self, prompts: Sequence[ChatPrompt]) -> Inputs:
        """Padded as what writes after them wants it."""
        return inputs_of(self.chat, prompts, side="left", device=self.device)

    def write(
        self, prompts: Sequence[Read], keys: Sequence[int], writing: Writing | None = None
    ) -> Completions:
        """A completion of each prompt.

        Args:
            keys: one a row.
            writing: otherwise than as usual.
        """
        inputs = self.inputs([one.chat for one in prompts])
        return write(self.module.encoder, inputs, keys, writing or self.writing)
