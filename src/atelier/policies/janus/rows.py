"""Contexts as tensors: left-padded tokens, what is attended to, and the images in between."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from atelier.policies.janus.conversation import IMAGE_SLOT, Context

SEEN_SLOT = IMAGE_SLOT - 1
_Item = TypeVar("_Item", int, bool)


@dataclass(frozen=True)
class Drawn:
    """An image in a context as what was, or could have been, drawn: its codes [N]."""

    codes: Tensor

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class Seen:
    """An image in a context as it is looked at: what the aligner makes of it [N, D]."""

    features: Tensor

    def __len__(self) -> int:
        return len(self.features)


Picture = Drawn | Seen


@dataclass(frozen=True)
class Rows:
    """B contexts of at most L tokens, padded on the left.

    Attributes:
        tokens: [B, L] int64; IMAGE_SLOT where an embedding of a drawn image goes, SEEN_SLOT where
            one of a seen image does.
        null_tokens: [B, L] the same without the prompt, for the unconditional rows.
        mask: [B, L] bool, false on left padding and on hidden tokens: no key of any query. It is
            that of the unconditional rows too: their pads in place of the prompt are attended.
        codes: [M, N] int64 of the M drawn images, row by row in their order.
        features: [K, N, D] of the K seen images, likewise.
    """

    tokens: Tensor
    null_tokens: Tensor
    mask: Tensor
    codes: Tensor | None = None
    features: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def padding(self) -> Tensor:
        """Pads on the left of each row [B, 1]."""
        return self.mask.int().argmax(dim=1, keepdim=True)

    def at(self, places: Sequence[int]) -> Rows:
        """Some of the rows, with their images."""
        where = list(places)
        return Rows(
            self.tokens[where],
            self.null_tokens[where],
            self.mask[where],
            _of_rows(self.codes, self.tokens == IMAGE_SLOT, where),
            _of_rows(self.features, self.tokens == SEEN_SLOT, where),
        )

    def to(self, device: torch.device | str) -> Rows:
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


def stack(
    contexts: Sequence[Context],
    images: Sequence[Sequence[Picture]],
    pad: int,
    hidden: Collection[int] = (),
) -> Rows:
    """Contexts of any lengths as rows, on the CPU (images stay where they are).

    Args:
        images: of each context, in the order of its slots.
        pad: token that fills up on the left, and stands for the prompt in unconditional rows.
        hidden: tokens that nobody attends to. They keep their place: positions count them
            (Janus-Pro-R1 hides the EOS of a reflection from what is drawn after it).

    Raises:
        ValueError: a context has more or fewer slots than its images have embeddings.
    """
    length = max(len(context.tokens) for context in contexts)
    written = [
        _with_slots(context, pictures) for context, pictures in zip(contexts, images, strict=True)
    ]
    nulls = [
        _with_slots(context.without_prompt(pad), pictures)
        for context, pictures in zip(contexts, images, strict=True)
    ]
    masks = [[token not in hidden for token in context.tokens] for context in contexts]
    pictures = [picture for row in images for picture in row]
    codes = [one.codes for one in pictures if isinstance(one, Drawn)]
    features = [one.features for one in pictures if isinstance(one, Seen)]
    return Rows(
        tokens=torch.tensor([_left(row, length, pad) for row in written]),
        null_tokens=torch.tensor([_left(row, length, pad) for row in nulls]),
        mask=torch.tensor([_left(row, length, False) for row in masks]),
        codes=torch.stack(codes) if codes else None,
        features=torch.stack(features) if features else None,
    )


def _of_rows(images: Tensor | None, slots: Tensor, places: Sequence[int]) -> Tensor | None:
    """Images of some rows, of those of all rows; None where they have none."""
    if images is None:
        return None
    each = images.split((slots.sum(dim=1) // images.shape[1]).tolist())
    chosen = torch.cat([each[place] for place in places])
    return chosen if len(chosen) else None


def _left(row: Sequence[_Item], length: int, filling: _Item) -> list[_Item]:
    return [filling] * (length - len(row)) + list(row)


def _with_slots(context: Context, pictures: Sequence[Picture]) -> list[int]:
    """The tokens, each slot marked with how its image is to be embedded."""
    marks = [
        IMAGE_SLOT if isinstance(picture, Drawn) else SEEN_SLOT
        for picture in pictures
        for _ in range(len(picture))
    ]
    slots = context.tokens.count(IMAGE_SLOT)
    if slots != len(marks):
        raise ValueError(
            f"a context has {slots} image slots, its {len(pictures)} images {len(marks)} embeddings"
        )
    left = iter(marks)
    return [next(left) if token == IMAGE_SLOT else token for token in context.tokens]
