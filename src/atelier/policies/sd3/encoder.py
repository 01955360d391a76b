"""From images to latents, the way back of decoder.py."""

from __future__ import annotations

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from atelier.transfer import to_device


class ImageEncoder:
    """A pipeline's frozen autoencoder; where it is and computes says decoder.ImageDecoder."""

    def __init__(self, vae: AutoencoderKL) -> None:
        self._vae = vae

    @torch.no_grad()
    def encode(self, images: np.ndarray, noise: Tensor) -> Tensor:
        """Images uint8 [B, H, W, 3] to latents [B, C, h, w] float32, drawn from the autoencoder's
        Gaussians by `noise`, standard normal of the latents' shape."""
        vae = self._vae
        pixels = (
            to_device(torch.from_numpy(images), noise.device).permute(0, 3, 1, 2).float() / 127.5
            - 1
        )
        found = vae.encode(pixels.to(vae.dtype)).latent_dist
        latents = found.mean.float() + found.std.float() * noise
        return (latents - vae.config.shift_factor) * vae.config.scaling_factor
