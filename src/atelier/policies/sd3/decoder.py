"""From latents to images: what a reward sees depends on how, so there is one way to do it."""

from __future__ import annotations

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from atelier.config.sections.policy_parts import VaeConfig
from atelier.policies.grey_levels import as_grey_levels

_MEND = (
    "set policy.vae.dtype to bfloat16 or float32, which hold larger numbers than float16; if it "
    "is, the transformer's latents are the cause (policy.dtype)"
)


class ImageDecoder:
    """A pipeline's frozen autoencoder with the settings of `policy.vae`, on `device`."""

    def __init__(self, vae: AutoencoderKL, config: VaeConfig, device: torch.device) -> None:
        self._vae = vae.requires_grad_(False).eval().to(device)
        vae.use_slicing, vae.use_tiling = config.slicing, config.tiling

    @torch.no_grad()
    def decode(self, latents: Tensor) -> np.ndarray:
        """Latents [B, C, h, w] float32 to images uint8 [B, H, W, 3], as the pipeline does.

        Raises:
            Stopped: an image is no number.
        """
        vae = self._vae
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        images = vae.decode(latents.to(vae.dtype), return_dict=False)[0].float()
        levels = as_grey_levels((images / 2 + 0.5).permute(0, 2, 3, 1), _MEND)
        return levels.round().to(torch.uint8).cpu().numpy()
