"""Images of an evaluation folder, put side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

GAP = 4


def image_paths(folder: Path, limit: int | None = None) -> list[Path]:
    """The images of an evaluation folder, in the order of their names' numbers (the prompts')."""
    found = (folder / "images").glob("*.png")
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.stem)])[:limit]


def image_grid(paths: Sequence[Path], columns: int | None = None, scale: int = 1) -> Image.Image:
    """Equal-sized images in rows on a grey ground; nearly square unless `columns` says otherwise.

    Args:
        paths: image files, all of one size, at least one.
        columns: images a row.
        scale: whole-number enlargement; pixels stay pixels.
    """
    tiles = [Image.open(path).convert("RGB") for path in paths]
    width, height = (side * scale for side in tiles[0].size)
    columns = columns or math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    size = (columns * (width + GAP) + GAP, rows * (height + GAP) + GAP)
    grid = Image.new("RGB", size, (128, 128, 128))
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        enlarged = tile.resize((width, height), Image.Resampling.NEAREST)
        grid.paste(enlarged, (GAP + column * (width + GAP), GAP + row * (height + GAP)))
    return grid
