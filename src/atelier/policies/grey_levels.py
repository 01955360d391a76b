"""From what an autoencoder decodes to the grey levels that rewards, judges and checkers see."""

from __future__ import annotations

from torch import Tensor

from atelier.errors import Stopped


def as_grey_levels(images: Tensor, mend: str) -> Tensor:
    """Levels of images in about [0, 1]: clipped, float32 in [0, 255], not yet rounded.

    Args:
        mend: what to do about images that are no numbers.

    Raises:
        Stopped: a value is NaN or infinite. A cast would make it black, a poor image like any
            other, and training would go on with its score.
    """
    if not bool(images.isfinite().all()):
        raise Stopped(f"images were decoded whose values are NaN or infinite; {mend}")
    return images.float().clamp(0, 1) * 255
