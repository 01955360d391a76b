"""From what an autoencoder decodes to the grey levels that rewards, judges and checkers see."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from atelier.errors import Stopped
from atelier.transfer import Arriving


class GreyLevels:
    """Images uint8 [B, H, W, 3] on their way from the device that makes them."""

    def __init__(self, images: Tensor, mend: str) -> None:
        """
        Args:
            images: [B, H, W, 3], in about [0, 1].
            mend: what to do about images that are no numbers.
        """
        self._finite = Arriving(_are_finite(images))
        self._levels = Arriving(_levels(images).round().to(torch.uint8))
        self._mend = mend

    def wait(self) -> np.ndarray:
        """The images.

        Raises:
            Stopped: a value is NaN or infinite; see as_grey_levels.
        """
        _require_finite(self._finite.wait(), self._mend)
        return self._levels.wait().numpy()


def as_grey_levels(images: Tensor, mend: str) -> Tensor:
    """Levels of images in about [0, 1]: clipped, float32 in [0, 255], not yet rounded.

    Args:
        mend: what to do about images that are no numbers.

    Raises:
        Stopped: a value is NaN or infinite. A cast would make it black, a poor image like any
            other, and training would go on with its score.
    """
    _require_finite(_are_finite(images), mend)
    return _levels(images)


def _are_finite(images: Tensor) -> Tensor:
    return images.isfinite().all()


def _levels(images: Tensor) -> Tensor:
    return images.float().clamp(0, 1) * 255


def _require_finite(are_finite: Tensor, mend: str) -> None:
    if not bool(are_finite):
        raise Stopped(f"images were decoded whose values are NaN or infinite; {mend}")
