"""From pixels to latents: the size of what a latent diffusion model denoises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atelier.errors import ConfigError


def latent_side(
    resolution: int | None, transformer: Mapping[str, Any], vae: Mapping[str, Any]
) -> int:
    """Height and width of the latents of square images.

    Args:
        resolution: side of the images in pixels (policy.resolution), None for the model's own.
        transformer: its config.json: sample_size, patch_size, pos_embed_max_size.
        vae: its config.json: block_out_channels, each but the first halves the side.

    Raises ConfigError when the model has no place for such images.
    """
    if resolution is None:
        return int(transformer["sample_size"])
    factor = vae_factor(vae)
    patch = factor * int(transformer["patch_size"])
    largest = int(transformer.get("pos_embed_max_size") or 0) * patch
    if resolution % patch or (largest and resolution > largest):
        bound = f" and at most {largest}" if largest else ""
        raise ConfigError(
            f"policy.resolution: {resolution} pixels; this model wants a multiple of {patch}{bound}"
        )
    return resolution // factor


def vae_factor(vae: Mapping[str, Any]) -> int:
    """How many pixels a latent is wide."""
    return int(2 ** (len(vae["block_out_channels"]) - 1))
