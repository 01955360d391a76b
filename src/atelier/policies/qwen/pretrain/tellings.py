"""What the transformer is taught with: conversations of which the completion alone is to be
believed.

The user's words are those of the picture, nearly those, those of another one, or none; where the
completion leaves something out, they never say it. A share has no completion, and then they are of
any other picture.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.data.keys import key
from atelier.judge_models.tiny.network import last_hidden
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.pretrain.conversations import Conversations, conversations
from atelier.policies.qwen.pretrain.words import (
    EDIT_FRAMES,
    FRAMES,
    NOTHING_ASKED,
    NOTHING_SAID,
    asked,
    careless,
    framed,
    nearly,
)

BATCH = 2000  # conversations read together

# Shares of what the user says: the truth, nearly that, another's, nothing; then of no completion.
TRUE, NEARLY, OTHER, NOTHING = 0.35, 0.30, 0.17, 0.08
CARELESS = 0.15  # of the completions beside another's words or none


@dataclass(frozen=True)
class Conditions:
    """What the transformer sees of N conversations.

    Attributes:
        embeds: [N, L, D] float16, of the user's words on.
        lengths: [N] of them a row's own.
        case: [N] which picture each is about.
    """

    embeds: Tensor
    lengths: Tensor
    case: Tensor


@dataclass(frozen=True)
class Told:
    """One conversation: words, completion, picture."""

    words: str
    completion: str | None
    case: int


def tellings(plain: Sequence[str], edits: bool, count: int, seed: int) -> list[Told]:
    """`count` conversations about each picture."""
    frames = EDIT_FRAMES if edits else FRAMES
    nothing = NOTHING_ASKED if edits else NOTHING_SAID
    found = []
    for index, own in enumerate(plain):
        rng = random.Random(key("tiny-qwen tellings", seed, index))
        for _ in range(count):
            other = asked(rng.choice(plain), rng)
            draw, said = rng.random(), framed(own, frames, rng)
            if draw < TRUE:
                found.append(Told(asked(own, rng), said, index))
            elif draw < TRUE + NEARLY:
                found.append(Told(asked(nearly(own, rng), rng), said, index))
            elif draw < TRUE + NEARLY + OTHER + NOTHING:
                words = other if draw < TRUE + NEARLY + OTHER else rng.choice(nothing)
                left = careless(own, rng) if rng.random() < CARELESS else said
                found.append(Told(words, left, index))
            else:
                found.append(Told(rng.choice([other, rng.choice(nothing)]), None, index))
    return found


@torch.no_grad()
def conditions(
    encoder: object, chat: Chat, told: Sequence[Told], sources: Tensor | None, device: str
) -> Conditions:
    """As `Conditioning` makes them, many at once.

    Args:
        sources: uint8 images that are edited, by case.
    """
    rows = conversations(chat, [one.words for one in told], [one.completion for one in told])
    case = torch.tensor([one.case for one in told], device=device)
    return Conditions(
        _hidden(encoder, rows.to(device), None if sources is None else sources[case], chat.drop),
        (rows.end - chat.drop).to(device),
        case,
    )


def _hidden(encoder: object, rows: Conversations, images: Tensor | None, drop: int) -> Tensor:
    parts = []
    for start in range(0, len(rows), BATCH):
        some = slice(start, start + BATCH)
        seen = None if images is None else images[some]
        hidden = last_hidden(encoder, rows.tokens[some].long(), seen, rows.image)
        parts.append(hidden[:, drop:].half())
    return torch.cat(parts)
