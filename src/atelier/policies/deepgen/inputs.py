"""Prompts as tokens, and batches of them as the language model takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atelier.policies.deepgen.template import Template
from atelier.policies.deepgen.vision import Seen, seen


@dataclass(frozen=True)
class Asked:
    """A prompt in tokens, and the images that it is about."""

    ids: tuple[int, ...]
    images: Seen | None = None


@dataclass(frozen=True)
class Inputs:
    """B prompts, padded on the left, and behind each the places of the learned queries.

    Attributes:
        ids: [B, L] int64 of the prompts alone.
        mask: [B, L + queries] bool, false on padding.
        positions: [3, B, L + queries] int64 of time, row and column.
        patches: of all images, in order; None without any.
        grid: [images, 3].
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor
    patches: Tensor | None = None
    grid: Tensor | None = None

    def rows(self, index: Tensor) -> Inputs:
        """Some prompts without images."""
        return replace(
            self,
            ids=self.ids[index],
            mask=self.mask[index],
            positions=self.positions[:, index],
        )

    def to(self, device: torch.device | str) -> Inputs:
        return Inputs(
            self.ids.to(device),
            self.mask.to(device),
            self.positions.to(device),
            None if self.patches is None else self.patches.to(device),
            None if self.grid is None else self.grid.to(device),
        )


class Reader:
    """Makes tokens of prompts.

    Args:
        vlm: whose positions the tokens get (its own rope index).
        queries: how many places follow each prompt.
    """

    def __init__(self, tokenizer: Any, template: Template, vlm: Any, queries: int) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._model = vlm.model
        self._queries = queries

    def asked(self, words: str, images: Sequence[Tensor] = ()) -> Asked:
        """A prompt, about images [3, H, W] in [-1, 1] if it has any."""
        if not images:
            return Asked(self._tokens(self._template.drawing(words)))
        looked = seen(images, self._model.config.vision_config)
        return Asked(self._tokens(self._template.editing(words, looked.tokens)), looked)

    def drawings(self, words: Sequence[str]) -> list[Asked]:
        """Many prompts without images at once, which is faster."""
        texts = [self._template.drawing(one) for one in words]
        return [Asked(tuple(ids)) for ids in self.tokenizer(texts)["input_ids"]]

    def inputs(self, prompts: Sequence[Asked]) -> Inputs:
        """A batch. The queries' own ids are 0, as text."""
        length = max(len(one.ids) for one in prompts)
        whole = torch.zeros(len(prompts), length + self._queries, dtype=torch.int64)
        mask = torch.zeros_like(whole, dtype=torch.bool)
        for row, one in enumerate(prompts):
            own = slice(length - len(one.ids), length)
            whole[row, own] = torch.tensor(one.ids)
            mask[row, own.start :] = True
        images = [one.images for one in prompts if one.images is not None]
        grid = torch.cat([one.grid for one in images]) if images else None
        positions = text_positions(mask) if grid is None else self._positions(whole, mask, grid)
        patches = torch.cat([one.patches for one in images]) if images else None
        return Inputs(whole[:, :length], mask, positions, patches, grid)

    def _positions(self, ids: Tensor, mask: Tensor, grid: Tensor) -> Tensor:
        """By the model's own rope index, row by row; an image's tokens lie in a plane."""
        kinds = (ids == self._model.config.image_token_id) & mask
        found: Tensor = self._model.get_rope_index(
            ids, mm_token_type_ids=kinds.int(), image_grid_thw=grid, attention_mask=mask
        )[0]
        return found

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text)["input_ids"])


def text_positions(mask: Tensor) -> Tensor:
    """What the rope index is of text alone: [3, B, S], counted without padding."""
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    return counted.expand(3, -1, -1)
