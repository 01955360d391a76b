"""Training of the autoencoder, and the latents of all images in its final units."""

import logging
import time
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from atelier.policies.pretraining.compute import (
    autocast,
    compiled,
    cosine,
    differences,
    to_pixels,
)
from atelier.policies.sd3.pretrain.options import Options

log = logging.getLogger(__name__)
ENCODE_BATCH = 1000


def train_autoencoder(vae: AutoencoderKL, images: Tensor, options: Options) -> dict[str, Any]:
    """Train in place on uint8 `images` for `vae_seconds`; returns what it measured.

    The learning rate follows a cosine over the time, not over steps.
    """
    vae.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=0.0, betas=(0.9, 0.99), weight_decay=0.0)
    step_loss = compiled(_loss, options.compile)
    generator = torch.Generator(images.device).manual_seed(options.seed)
    start, step, entry = time.monotonic(), 0, {}
    while True:
        # The first step compiles: its time does not count.
        start = time.monotonic() if step == 1 else start
        done = max((time.monotonic() - start) / options.vae_seconds, step / options.vae_steps)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.vae_learning_rate * min(1.0, (step + 1) / 200) * cosine(done)
        index = torch.randint(
            len(images), (options.vae_batch,), generator=generator, device=images.device
        )
        loss, parts = step_loss(vae, to_pixels(images[index]), options.vae_kl, options.vae_edge)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 200 == 0:
            entry = {name: round(float(value), 5) for name, value in parts.items()}
            log.info("vae step %d %.0f %% %s", step, 100 * done, entry)
    vae.eval().requires_grad_(False)
    return {"steps": step, "seconds": round(time.monotonic() - start, 1), **entry}


@torch.no_grad()
def set_units(vae: AutoencoderKL, images: Tensor) -> dict[str, float]:
    """Set shift_factor and scaling_factor, so that scaled latents have mean 0 and variance 1."""
    moments = [vae.encode(to_pixels(part)).latent_dist for part in images.split(ENCODE_BATCH)]
    mean = torch.cat([item.mean for item in moments])
    variance = mean.var() + torch.cat([item.var for item in moments]).mean()
    units = {
        "shift_factor": round(mean.mean().item(), 6),
        "scaling_factor": round(1 / variance.sqrt().item(), 6),
    }
    vae.register_to_config(**units)
    return units


@torch.no_grad()
def encode(vae: AutoencoderKL, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [N, C, h, w] of the scaled latents, float16."""
    means, deviations = [], []
    for part in images.split(ENCODE_BATCH):
        distribution = vae.encode(to_pixels(part)).latent_dist
        scaled = (distribution.mean - vae.config.shift_factor) * vae.config.scaling_factor
        means.append(scaled.half())
        deviations.append((distribution.std * vae.config.scaling_factor).half())
    return torch.cat(means), torch.cat(deviations)


@torch.no_grad()
def round_trip(vae: AutoencoderKL, images: Tensor) -> Tensor:
    """Images after encoding (mean) and decoding, uint8 [N, H, W, 3]."""
    parts = []
    for part in images.split(ENCODE_BATCH):
        decoded = vae.decode(vae.encode(to_pixels(part)).latent_dist.mean).sample
        pixels = ((decoded.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
        parts.append(pixels.permute(0, 2, 3, 1))
    return torch.cat(parts)


def _loss(
    vae: AutoencoderKL, pixels: Tensor, kl_weight: float, edge_weight: float
) -> tuple[Tensor, dict[str, Tensor]]:
    with autocast(pixels):
        distribution = vae.encode(pixels).latent_dist
        latents = distribution.mean + distribution.std * torch.randn_like(distribution.mean)
        decoded = vae.decode(latents).sample
    decoded = decoded.float()
    parts = {
        **differences(decoded, pixels),
        "kl": 0.5
        * (
            distribution.mean.float().square()
            + distribution.var.float()
            - 1
            - distribution.logvar.float()
        ).mean(),
    }
    loss = parts["l1"] + parts["mse"] + edge_weight * parts["edge"] + kl_weight * parts["kl"]
    return loss, {name: value.detach() for name, value in parts.items()}
