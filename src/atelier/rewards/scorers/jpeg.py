"""Rewards `jpeg_compressibility` and `jpeg_incompressibility`: the size of the image as JPEG.

Published code disagrees about the sign, so both exist, each labelled by what a
higher value means.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from atelier.config.sections.rewards import JpegConfig
from atelier.rewards.base import Direction, ScoreBatch, Scores

# Flat grey has only zero coefficients: its size hardly depends on quality or encoder.
_GOLDEN_KILOBYTES = {64: 0.689, 512: 4.721}  # as published, and a larger one
_GOLDEN_TOLERANCE = 0.3  # headers and Huffman tables differ between encoders


class JpegIncompressibility:
    """Kilobytes (1000 bytes) of the image as JPEG: higher is less compressible."""

    name = "jpeg_incompressibility"
    direction: Direction = "higher_is_better"
    value_range: tuple[float, float] = (0.0, float("inf"))
    version = "1"
    scale = 1.0

    def __init__(self, config: JpegConfig) -> None:
        self.config = config

    def score(self, batch: ScoreBatch) -> Scores:
        sizes = [jpeg_bytes(image, self.config.quality) for image in batch.images]
        return Scores(
            self.name,
            [self.scale * size / 1000 for size in sizes],
            [{"bytes": size} for size in sizes],
        )

    def weights(self) -> Sequence[Path]:
        return ()

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """Two flat grey squares."""
        count = len(_GOLDEN_KILOBYTES)
        batch = ScoreBatch(
            images=[Image.new("RGB", (side, side), (128,) * 3) for side in _GOLDEN_KILOBYTES],
            prompts=["grey"] * count,
            metadata=[{}] * count,
            group_ids=list(range(count)),
        )
        expected = [self.scale * size for size in _GOLDEN_KILOBYTES.values()]
        return batch, expected, abs(self.scale) * _GOLDEN_TOLERANCE


class JpegCompressibility(JpegIncompressibility):
    """-kilobytes / 500: higher is more compressible."""

    name = "jpeg_compressibility"
    value_range = (float("-inf"), 0.0)
    scale = -1 / 500


def jpeg_bytes(image: Image.Image, quality: int) -> int:
    """Length of the image as JPEG with the encoder's default subsampling (4:2:0)."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality)
    return buffer.tell()
