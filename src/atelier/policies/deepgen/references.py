"""Images that are edited: as the language model sees them, and as latents beside the noisy one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL.Image import Image
from torch import Tensor


def pixels(image: Image) -> Tensor:
    """[3, H, W] float32 in [-1, 1]."""
    levels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return levels.float() / 127.5 - 1


@torch.no_grad()
def reference_latents(vae: AutoencoderKL, images: Sequence[Tensor]) -> list[Tensor]:
    """Of images [3, H, W] in [-1, 1], float32 [C, h, w] in the transformer's units.

    The mean of what the autoencoder says, where the published code draws from it: what an image is
    does not depend on chance.
    """
    said: Any = vae.config
    found = []
    for image in images:
        encoded = vae.encode(image[None].to(vae.device, vae.dtype)).latent_dist.mean[0]
        found.append((encoded.float() - said.shift_factor) * said.scaling_factor)
    return found
