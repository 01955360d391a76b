"""Batches of prompts and completions, as Qwen2.5-VL takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from atelier.policies.qwen.chat import Chat, ChatPrompt

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Inputs:
    """Padded tokens of B rows, and the images in them.

    Attributes:
        ids: [B, L] int64.
        mask: [B, L] int64, 0 on padding.
        kinds: [B, L] int64, 1 where an image's placeholders are.
        pixels: [patches, values] of all images, one behind the other; None without any.
        grid: [images, 3].
    """

    ids: Tensor
    mask: Tensor
    kinds: Tensor
    pixels: Tensor | None = None
    grid: Tensor | None = None

    def arguments(self) -> dict[str, Any]:
        """Of the model's forward pass, and of its `generate`.

        Without the kinds of tokens transformers gives an image's tokens the positions of a text,
        and says nothing (diffusers 0.42 leaves them out).
        """
        arguments = {"input_ids": self.ids, "attention_mask": self.mask}
        if self.pixels is None:
            return arguments
        seen = {"pixel_values": self.pixels, "image_grid_thw": self.grid}
        return {**arguments, **seen, "mm_token_type_ids": self.kinds}

    def followed_by(self, tokens: Tensor) -> Inputs:
        """The same rows with text [B, N] after them; what is padding in it is no row's own, but
        comes after all that is."""
        return replace(
            self,
            ids=torch.cat([self.ids, tokens], dim=1),
            mask=torch.cat([self.mask, torch.ones_like(tokens)], dim=1),
            kinds=torch.cat([self.kinds, torch.zeros_like(tokens)], dim=1),
        )


def inputs_of(
    chat: Chat,
    prompts: Sequence[ChatPrompt],
    completions: Sequence[Sequence[int]] | None = None,
    side: Side = "right",
    device: torch.device | str = "cpu",
) -> Inputs:
    """Prompts, each followed by its completion, if any.

    Args:
        completions: tokens without padding.
        side: where rows are padded; `generate` wants left.
    """
    written = completions if completions is not None else [()] * len(prompts)
    rows = [[*prompt.ids, *tokens] for prompt, tokens in zip(prompts, written, strict=True)]
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), chat.pad)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        ids[index, place] = torch.tensor(row)
        mask[index, place] = 1
    kinds = (ids == chat.image_pad).long()
    pixels = [prompt.pixels for prompt in prompts if prompt.pixels is not None]
    grids = [prompt.grid for prompt in prompts if prompt.grid is not None]
    return Inputs(
        ids.to(device),
        mask.to(device),
        kinds.to(device),
        torch.cat(pixels).to(device) if pixels else None,
        torch.cat(grids).to(device) if grids else None,
    )
