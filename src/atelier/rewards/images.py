"""Image arrays to the PIL images that scorers take."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def pil_images(images: NDArray[np.uint8]) -> list[Image.Image]:
    """uint8 [N, H, W, 3] to N RGB images.

    Raises:
        ValueError: another dtype or shape; a float array would be scored as a black image.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(f"images must be uint8 [N, H, W, 3], got {images.dtype} {images.shape}")
    return [Image.fromarray(image) for image in images]
