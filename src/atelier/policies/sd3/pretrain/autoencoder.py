"""Training of the autoencoder, and the latents of all images in its final units."""

import logging
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from atelier.policies.pretraining.compute import (
    WARMUP_STEPS,
    adamw,
    autocast,
    compiled,
    cosine,
    differences,
    rounded,
    set_rate,
    to_pixels,
)
from atelier.policies.pretraining.course import Course
from atelier.policies.sd3.pretrain.options import Options

log = logging.getLogger(__name__)
ENCODE_BATCH = 1000


def train_autoencoder(vae: AutoencoderKL, images: Tensor, options: Options) -> dict[str, Any]:
    """Train in place on uint8 `images` for `vae_seconds`; returns what it measured.

    The learning rate follows a cosine over the time, not over steps.
    """
    vae.train().requires_grad_(True)
    groups = [{"params": list(vae.parameters()), "weight_decay": 0.0}]
    optimizer = adamw(groups, (0.9, 0.99), images.device)
    step_loss = compiled(_loss, options.compile)
    generator = torch.Generator(images.device).manual_seed(options.seed)
    course, entry = Course(options.vae_seconds, options.vae_steps, untimed=1), {}
    for done in course:
        warm = min(1.0, course.step / WARMUP_STEPS)
        set_rate(optimizer, options.vae_learning_rate * warm * cosine(done))
        index = torch.randint(
            len(images), (options.vae_batch,), generator=generator, device=images.device
        )
        loss, parts = step_loss(vae, to_pixels(images[index]), options.vae_kl, options.vae_edge)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if course.step % 200 == 0:
            entry = rounded(parts)
            log.info("vae step %d %.0f %% %s", course.step, 100 * done, entry)
    vae.eval().requires_grad_(False)
    return {"steps": course.step, "seconds": round(course.seconds, 1), **entry}


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
