"""Reference images as the vision tower of Qwen2.5-VL takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from atelier.config.facts.deepgen import SEEN_AS_A_TOKEN

MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's, of pixels in [0, 1]
STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Seen:
    """Patches of images, one behind the other.

    Attributes:
        patches: [patches, values] float32.
        grid: [images, 3] int64: frames (1), rows and columns of patches.
        tokens: of each image in the language model.
    """

    patches: Tensor
    grid: Tensor
    tokens: tuple[int, ...]


def seen(images: Sequence[Tensor], tower: Any) -> Seen:
    """Images as a tower sees them.

    Args:
        images: each [3, H, W] in [-1, 1], sides multiples of 32.
        tower: the vision_config of the model: patch_size, spatial_merge_size, temporal_patch_size.

    Raises:
        ValueError: an image has other sides.
    """
    made = [_patches(one, tower) for one in images]
    merged = tower.spatial_merge_size**2
    grid = torch.tensor([(1, rows, columns) for _, rows, columns in made])
    return Seen(
        torch.cat([one for one, _, _ in made]), grid, tuple((grid.prod(1) // merged).tolist())
    )


def _patches(image: Tensor, tower: Any) -> tuple[Tensor, int, int]:
    """Patches [rows * columns, values], in the order in which the tower merges them: those of one
    token are neighbours; every image is a film of `temporal_patch_size` equal frames."""
    height, width = image.shape[-2:]
    if height % SEEN_AS_A_TOKEN or width % SEEN_AS_A_TOKEN:
        raise ValueError(
            f"a reference image of {width}x{height} pixels; its sides are multiples of "
            f"{SEEN_AS_A_TOKEN}"
        )
    size, merge, frames = tower.patch_size, tower.spatial_merge_size, tower.temporal_patch_size
    down, across = height // SEEN_AS_A_TOKEN, width // SEEN_AS_A_TOKEN
    side = size * merge
    scaled = functional.interpolate(
        image[None].float(), size=(down * side, across * side), mode="bilinear"
    )[0]
    mean, std = (torch.tensor(one, device=image.device)[:, None, None] for one in (MEAN, STD))
    pixels = ((scaled + 1) / 2 - mean) / std
    cut = pixels.reshape(3, down, merge, size, across, merge, size)
    ordered = cut.permute(1, 4, 2, 5, 0, 3, 6)  # token row and column, place in it, values
    film = ordered.unsqueeze(5).expand(*ordered.shape[:5], frames, size, size)
    return film.reshape(down * across * merge**2, -1), down * merge, across * merge
