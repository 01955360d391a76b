"""The two sizes in which an edit's source image is seen.

diffusers has them as constants of a module, which are no arguments of a call: this is the one place
that sets them, for as long as a pipeline runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus


@dataclass(frozen=True)
class Areas:
    """Pixels of a source image: as the language model sees it, and as the transformer does. The
    defaults are what Qwen-Image-Edit-2509 was trained with."""

    condition: int = 384 * 384
    reference: int = 1024 * 1024

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, diffusers' pipeline of edits sees source images in these sizes."""
        before = edit_plus.CONDITION_IMAGE_SIZE, edit_plus.VAE_IMAGE_SIZE
        edit_plus.CONDITION_IMAGE_SIZE, edit_plus.VAE_IMAGE_SIZE = self.condition, self.reference
        try:
            yield
        finally:
            edit_plus.CONDITION_IMAGE_SIZE, edit_plus.VAE_IMAGE_SIZE = before


def fitted(size: tuple[int, int], area: int) -> tuple[int, int]:
    """Width and height, multiples of 32, that an image of this size is seen in."""
    width, height = edit_plus.calculate_dimensions(area, size[0] / size[1])
    return int(width), int(height)
