"""What a picture looks like, in three numbers that move when a policy hacks its reward.

An OCR-only run was seen to double its dark pixels and lose 60 % of its edges while its score rose;
others grow fine grids. `monitoring` watches these numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DARK_BELOW = 64.0  # luma of 0..255
EDGE_ABOVE = 32.0  # luma step between neighbours
LEVELS = 8  # a colour channel has this many bins

NAMES = ("dark_share", "edge_density", "color_entropy")


def image_statistics(image: NDArray[np.uint8]) -> dict[str, float]:
    """Statistics of uint8 [H, W, 3].

    Returns:
        dark_share: share of pixels with a luma below 64, in [0, 1].
        edge_density: share of neighbouring pixel pairs whose luma differs by more than 32, [0, 1].
        color_entropy: bits of the histogram over 8 x 8 x 8 colours, in [0, 9].
    """
    luma = image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    steps = [np.abs(np.diff(luma, axis=axis)).ravel() for axis in (0, 1)]
    pairs = np.concatenate(steps)
    return {
        "dark_share": float((luma < DARK_BELOW).mean()),
        "edge_density": float((pairs > EDGE_ABOVE).mean()) if pairs.size else 0.0,
        "color_entropy": _color_entropy(image),
    }


def _color_entropy(image: NDArray[np.uint8]) -> float:
    red, green, blue = np.moveaxis(image.astype(np.int64) * LEVELS // 256, -1, 0)
    counts = np.bincount(((red * LEVELS + green) * LEVELS + blue).ravel())
    shares = counts[counts > 0] / counts.sum()
    return float(max(0.0, -(shares * np.log2(shares)).sum()))
