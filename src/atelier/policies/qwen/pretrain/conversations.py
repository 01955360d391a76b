"""Conversations in tokens, many at once, as the trainer's own `Chat` makes them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.templates import IMAGE_PAD, NOTHING
from atelier.policies.qwen.tiny.parts import PATCH, SIDE

IMAGE_TOKENS = (SIDE // (2 * PATCH)) ** 2
MULTIPLE = 8  # of tokens in a table: kernels of attention like that


@dataclass(frozen=True)
class Conversations:
    """N conversations, padded on the right.

    Attributes:
        tokens: [N, L] int32.
        begin: [N] where the completion begins.
        end: [N] where all ends.
        image: place of a source image's first token, the same in all; 0 without any.
    """

    tokens: Tensor
    begin: Tensor
    end: Tensor
    image: int

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: str) -> Conversations:
        return Conversations(
            self.tokens.to(device), self.begin.to(device), self.end.to(device), self.image
        )


def conversations(
    chat: Chat, words: Sequence[str], completions: Sequence[str | None]
) -> Conversations:
    """What users say, each with what is written to it and the mark that ends it; None: with
    nothing."""
    asked = _tokens(chat, [_text(chat, one) for one in words])
    written = _tokens(chat, [one or NOTHING for one in completions])
    spoken = [one is not None for one in completions]
    begin = np.asarray([len(one) for one in asked])
    end = begin + [(len(one) + 1) * said for one, said in zip(written, spoken, strict=True)]
    length = -(-int(end.max()) // MULTIPLE) * MULTIPLE + chat.drop % MULTIPLE
    table = np.full((len(asked), length), chat.pad, np.int32)
    for row, prompt, tokens, said in zip(table, asked, written, spoken, strict=True):
        row[: len(prompt)] = prompt
        if said:
            row[len(prompt) : len(prompt) + len(tokens)] = tokens
            row[len(prompt) + len(tokens)] = chat.end
    image = asked[0].tolist().index(chat.image_pad) if chat.edits else 0
    return Conversations(
        torch.from_numpy(table), torch.from_numpy(begin), torch.from_numpy(end), image
    )


def _text(chat: Chat, words: str) -> str:
    """All that comes before a completion, with a place for every token of a source image."""
    text = chat.template.text(words)
    return text.replace(IMAGE_PAD, IMAGE_PAD * IMAGE_TOKENS) if chat.edits else text


def _tokens(chat: Chat, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """Of each text; those that come several times are read once."""
    different = list(dict.fromkeys(texts))
    found = chat.tokenizer(different)["input_ids"]
    known = {text: np.asarray(ids, np.int32) for text, ids in zip(different, found, strict=True)}
    return [known[text] for text in texts]
