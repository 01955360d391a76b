"""Images side by side in one picture, each with a few words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

CELL = 96  # pixels; smaller images are enlarged without smoothing, larger ones reduced
MARGIN = 8
BACKGROUND = (222, 222, 222)  # neither paper white nor black: borders of images stay visible
TEXT_HEIGHT = 16

Images = Sequence[NDArray[np.uint8]] | NDArray[np.uint8]


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
