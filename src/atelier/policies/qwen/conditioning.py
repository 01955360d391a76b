"""From prompts and completions to what the frozen transformer is conditioned with.

The hidden states are those of the encoder as it is, adapters included, in eval mode and without
gradients: an image is part of the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atelier.errors import ConfigError
from atelier.policies.qwen.chat import Chat, ChatPrompt
from atelier.policies.qwen.inputs import Inputs, Side, inputs_of


@dataclass(frozen=True)
class Conditioned:
    """Embeddings [B, L, D], zeros after a row's own; mask [B, L] bool; own tokens of each row."""

    embeds: Tensor
    mask: Tensor
    lengths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, indices: Sequence[int]) -> Conditioned:
        """Some rows, no wider than the longest of them."""
        lengths = tuple(self.lengths[index] for index in indices)
        where, width = list(indices), max(lengths)
        return Conditioned(self.embeds[where, :width], self.mask[where, :width], lengths)

    def repeated(self, times: int) -> Conditioned:
        """The only row as so many."""
        if len(self) != 1:
            raise ValueError(f"one row can be repeated, not {len(self)}")
        return self.rows([0] * times)

    def to(self, device: torch.device, dtype: torch.dtype) -> Conditioned:
        return Conditioned(self.embeds.to(device, dtype), self.mask.to(device), self.lengths)


class Conditioning:
    """Runs an encoder over prompts and completions.

    Args:
        window: most tokens of a sample that reach the transformer.
        side: where rows of a batch are padded; nothing depends on it.
    """

    def __init__(self, chat: Chat, window: int, side: Side = "right") -> None:
        self._chat = chat
        self._window = window
        self._side: Side = side

    def room(self, kept: int) -> int:
        """Most tokens of a completion, without its end, that reach the transformer all.

        Args:
            kept: tokens of the prompt that it sees (ChatPrompt.kept).
        """
        return self._window - kept - 1

    def __call__(
        self,
        encoder: nn.Module,
        prompts: Sequence[ChatPrompt],
        completions: Sequence[Sequence[int]] | None = None,
    ) -> Conditioned:
        """Conditions of B samples.

        Args:
            encoder: Qwen2_5_VLForConditionalGeneration, with whatever adapters it has.
            completions: tokens without padding, with or without the mark that ends them; None: of
                the prompts alone, as an untrained pipeline encodes them.

        Raises:
            ConfigError: a completion would be cut, or a prompt leaves no room for any.
            ValueError: a completion has marks in it.
        """
        whole = None
        if completions is not None:
            whole = [self._ended(one) for one in completions]
        self._require_room(prompts, whole)
        inputs = inputs_of(self._chat, prompts, whole, self._side, device_of(encoder))
        hidden = hidden_states(encoder, inputs)
        return kept(hidden, inputs.mask, [prompt.drop for prompt in prompts])

    def _ended(self, completion: Sequence[int]) -> tuple[int, ...]:
        """A completion that was cut off ends as one that was not: what follows it is the same."""
        words = tuple(completion)
        if words and words[-1] == self._chat.end:
            words = words[:-1]
        marks = set(words).intersection(self._chat.marks)
        if marks:
            raise ValueError(f"a completion has marks of the language model in it: {sorted(marks)}")
        return (*words, self._chat.end)

    def _require_room(
        self, prompts: Sequence[ChatPrompt], completions: Sequence[Sequence[int]] | None
    ) -> None:
        written = completions if completions is not None else [()] * len(prompts)
        for prompt, tokens in zip(prompts, written, strict=True):
            lost = prompt.kept + len(tokens) - self._window
            if lost <= 0:
                continue
            raise ConfigError(
                f"rollout.conditioning.window: {self._window} tokens reach the transformer, and a "
                f"sample has {prompt.kept + len(tokens)}: {prompt.user} of its words, "
                f"{prompt.image} of its source image, {prompt.tail} around them, and "
                f"{len(tokens)} of its completion, of which the last {min(lost, len(tokens))} "
                "would change nothing in the image; let completions be shorter, leave out long "
                "prompts, or (edits) widen the window"
            )


def device_of(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


@torch.no_grad()
def hidden_states(encoder: Any, inputs: Inputs) -> Tensor:
    """[B, L, D] after the last norm.

    The text head is left out: its logits would be the largest tensor of all.
    """
    with evaluated(encoder):
        return encoder.model(**inputs.arguments(), use_cache=False).last_hidden_state


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Inside, no dropout; afterwards every module is in the mode it was in."""
    training = [one for one in module.modules() if one.training]
    module.eval()
    try:
        yield
    finally:
        for one in training:
            one.training = True


def kept(hidden: Tensor, mask: Tensor, drop: Sequence[int]) -> Conditioned:
    """Hidden states [B, L, D] without padding, and without the first `drop` tokens of each row:
    taken off once, and padded anew on the right."""
    own = [row[where.bool()][count:] for row, where, count in zip(hidden, mask, drop, strict=True)]
    lengths = tuple(len(row) for row in own)
    embeds = nn.utils.rnn.pad_sequence(own, batch_first=True)
    places = torch.arange(embeds.shape[1], device=embeds.device)
    return Conditioned(
        embeds, places < torch.tensor(lengths, device=embeds.device)[:, None], lengths
    )
