"""Images side by side in one picture: the same prompts and noise at several steps, or a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

CELL = 96  # pixels; smaller images are enlarged without smoothing, larger ones reduced
MARGIN = 8
BACKGROUND = (222, 222, 222)  # neither paper white nor black: borders of images stay visible
TEXT_HEIGHT = 16
ROW_CAPTION_WIDTH = 150

Images = Sequence[NDArray[np.uint8]] | NDArray[np.uint8]


def comparison_grid(
    columns: Mapping[str, Images], row_captions: Sequence[str] = (), cell: int = CELL
) -> Image.Image:
    """One column a step (or before and after), one row a prompt.

    Args:
        columns: caption -> images uint8 [H, W, 3], the same number in every column.
        row_captions: one a row, or none.

    Raises:
        ValueError: no columns, or columns or captions of different lengths.
    """
    lengths = {name: len(images) for name, images in columns.items()}
    rows = next(iter(lengths.values()), 0)
    if not rows or len(set(lengths.values())) > 1 or len(row_captions) not in (0, rows):
        raise ValueError(f"a grid needs equal columns: {lengths}, {len(row_captions)} captions")
    left = ROW_CAPTION_WIDTH if row_captions else 0
    canvas, draw = _canvas(left + len(columns) * (cell + MARGIN), rows * (cell + MARGIN))
    for x, (caption, images) in enumerate(columns.items()):
        corner_x = left + MARGIN + x * (cell + MARGIN)
        _write(draw, (corner_x, MARGIN), caption, cell)
        for y, image in enumerate(images):
            _paste(canvas, image, (corner_x, MARGIN + TEXT_HEIGHT + y * (cell + MARGIN)), cell)
    for y, caption in enumerate(row_captions):
        middle = MARGIN + TEXT_HEIGHT + y * (cell + MARGIN) + cell // 2 - TEXT_HEIGHT // 2
        _write(draw, (MARGIN, middle), caption, left - MARGIN)
    return canvas


def contact_sheet(
    images: Images, captions: Sequence[Sequence[str]], columns: int = 8, cell: int = CELL
) -> Image.Image:
    """Images in rows, each with its lines of caption below.

    Raises:
        ValueError: no images, or not one caption an image.
    """
    if not len(images) or len(images) != len(captions):
        raise ValueError(f"a sheet needs a caption an image: {len(images)}, {len(captions)}")
    height = cell + TEXT_HEIGHT * max(len(lines) for lines in captions) + MARGIN
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    canvas, draw = _canvas(columns * (cell + MARGIN), rows * height)
    for index, (image, lines) in enumerate(zip(images, captions, strict=True)):
        row, column = divmod(index, columns)
        x, y = MARGIN + column * (cell + MARGIN), MARGIN + row * height
        _paste(canvas, image, (x, y), cell)
        for number, line in enumerate(lines):
            _write(draw, (x, y + cell + number * TEXT_HEIGHT), line, cell)
    return canvas


def _canvas(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    canvas = Image.new("RGB", (width + MARGIN, height + 2 * MARGIN + TEXT_HEIGHT), BACKGROUND)
    return canvas, ImageDraw.Draw(canvas)


def _paste(
    canvas: Image.Image, image: NDArray[np.uint8], corner: tuple[int, int], cell: int
) -> None:
    """Fit the image into a square cell, keeping its proportions."""
    picture = Image.fromarray(image)
    scale = cell / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    smoothing = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    canvas.paste(picture.resize(size, smoothing), corner)


def _write(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, width: int) -> None:
    """One line of text, cut where the width ends."""
    font = ImageFont.load_default(size=12)
    shown = text
    while shown and draw.textlength(shown, font=font) > width:
        shown = shown[:-1]
    if shown != text:
        shown = shown[:-1] + "."
    draw.text(corner, shown, fill="black", font=font)
