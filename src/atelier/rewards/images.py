"""Image arrays to the PIL images that scorers take, and words drawn for golden samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont


def pil_images(images: NDArray[np.uint8]) -> list[Image.Image]:
    """uint8 [N, H, W, 3] to N RGB images.

    Raises:
        ValueError: another dtype or shape; a float array would be scored as a black image.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(f"images must be uint8 [N, H, W, 3], got {images.dtype} {images.shape}")
    return [Image.fromarray(image) for image in images]


def drawn_word(text: str, size: tuple[int, int] = (192, 64)) -> Image.Image:
    """Black on white in Pillow's own font, so that the sample needs no file."""
    image = Image.new("RGB", size, "white")
    centre = (size[0] / 2, size[1] / 2)
    font = ImageFont.load_default(size=40)
    ImageDraw.Draw(image).text(centre, text, fill="black", font=font, anchor="mm")
    return image
