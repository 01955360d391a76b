"""Training of the autoencoder: pictures to latents and back.

Of the library's convolutions over time a single picture meets the last slice alone; here they are
computed as the convolutions over a picture that they then are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch import Tensor, nn
from torch.nn import functional

from atelier.policies.pretraining.compute import (
    WARMUP_STEPS,
    adamw,
    autocast,
    cosine,
    differences,
    follow,
    set_rate,
    to_pixels,
)
from atelier.policies.qwen.noise import packed
from atelier.policies.qwen.pretrain.options import AutoencoderOptions

BATCH = 1000  # images encoded or decoded together


class AutoencoderTrainer:
    """Learns in steps; `average` is the moving average of the weights."""

    def __init__(
        self, model: AutoencoderKLQwenImage, images: Tensor, options: AutoencoderOptions
    ) -> None:
        self.model = model.train().requires_grad_(True)
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.step = 0
        self._images, self._options = images, options
        self._generator = torch.Generator(images.device).manual_seed(options.seed)
        groups = [{"params": list(model.parameters()), "weight_decay": options.weight_decay}]
        self._optimizer = adamw(groups, (0.9, 0.99), images.device)

    def train_step(self, done: float) -> dict[str, Tensor]:
        """One update; the parts of the loss, not synchronised."""
        options = self._options
        warm = min(1.0, (self.step + 1) / WARMUP_STEPS)
        set_rate(self._optimizer, options.learning_rate * warm * cosine(done))
        where: dict[str, Any] = {"generator": self._generator, "device": self._images.device}
        index = torch.randint(len(self._images), (options.batch,), **where)
        pixels = to_pixels(self._images[index])
        with autocast(pixels):
            mean, log_variance = moments(self.model, pixels)
            noise = torch.randn(mean.shape, **where)
            decoded = decoded_latents(self.model, mean + (0.5 * log_variance).exp() * noise)
        parts = differences(decoded.float(), pixels) | {"kl": _kl(mean, log_variance)}
        loss = parts["l1"] + parts["mse"]
        loss = loss + options.edge * parts["edge"] + options.kl * parts["kl"]
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), options.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        follow(self.average.parameters(), self.model.parameters(), options.ema_decay, self.step)
        return {name: value.detach() for name, value in parts.items()} | {"loss": loss.detach()}


def moments(model: AutoencoderKLQwenImage, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance [B, C, h, w] of the latents of pixels [B, 3, H, W]."""
    with flat(model):
        both = model.quant_conv(model.encoder(pixels[:, :, None]))[:, :, 0]
    mean, log_variance = both.float().chunk(2, dim=1)
    return mean, log_variance.clamp(-30, 20)


def decoded_latents(model: AutoencoderKLQwenImage, latents: Tensor) -> Tensor:
    """Pixels [B, 3, H, W] of latents [B, C, h, w] in the model's own units, not yet clamped."""
    with flat(model):
        return model.decoder(model.post_quant_conv(latents[:, :, None]))[:, :, 0]


@torch.no_grad()
def encode(model: AutoencoderKLQwenImage, images: Tensor) -> Tensor:
    """Tokens float16 [N, tokens, 4 C] of uint8 images, as the transformer sees them: the mean, in
    the units of the latents."""
    mean, std = units(model, images.device)
    parts = []
    for part in images.split(BATCH):
        latents = (moments(model, to_pixels(part))[0] - mean) / std
        parts.append(packed(latents).half())
    return torch.cat(parts)


@torch.no_grad()
def decode(model: AutoencoderKLQwenImage, tokens: Tensor) -> Tensor:
    """Images uint8 [N, H, W, 3] of tokens [N, tokens, 4 C]."""
    mean, std = units(model, tokens.device)
    parts = []
    for part in tokens.split(BATCH):
        pixels = decoded_latents(model, unpacked(part.float()) * std + mean)
        pixels = (pixels.clamp(-1, 1) / 2 + 0.5) * 255
        parts.append(pixels.round().to(torch.uint8).permute(0, 2, 3, 1))
    return torch.cat(parts)


@torch.no_grad()
def set_units(model: AutoencoderKLQwenImage, images: Tensor) -> None:
    """Measure the latents of uint8 images, and have the model know: mean and deviation of each
    channel, with the noise that it was trained with."""
    both = [moments(model, to_pixels(part)) for part in images.split(BATCH)]
    mean = torch.cat([one for one, _ in both])
    noise = torch.cat([other for _, other in both]).exp().mean(dim=(0, 2, 3))
    std = (mean.var(dim=(0, 2, 3)) + noise).sqrt()
    model.register_to_config(
        latents_mean=[round(one, 5) for one in mean.mean(dim=(0, 2, 3)).tolist()],
        latents_std=[round(one, 5) for one in std.tolist()],
    )


def units(model: AutoencoderKLQwenImage, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation [1, C, 1, 1] of the latents."""
    said = model.config
    mean, std = (
        torch.tensor(one, device=device).view(1, -1, 1, 1)
        for one in (said.latents_mean, said.latents_std)
    )
    return mean, std


def unpacked(tokens: Tensor) -> Tensor:
    """The inverse of `noise.packed`, of square latents."""
    side = round(tokens.shape[1] ** 0.5)
    squares = tokens.unflatten(2, (-1, 2, 2)).unflatten(1, (side, side))  # [B, h, w, C, 2, 2]
    return squares.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def forget_time(model: nn.Module) -> None:
    """Set what a single picture never meets to zero: the earlier slices of the convolutions."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, QwenImageCausalConv3d) and module.kernel_size[0] > 1:
                module.weight[:, :, :-1] = 0


@contextmanager
def flat(model: nn.Module) -> Iterator[None]:
    """Inside, convolutions are those over a single picture."""
    convolutions = [one for one in model.modules() if isinstance(one, QwenImageCausalConv3d)]
    for one in convolutions:
        one.forward = _over_picture.__get__(one)
    try:
        yield
    finally:
        for one in convolutions:
            del one.forward


def _over_picture(self: QwenImageCausalConv3d, x: Tensor, cache_x: Any = None) -> Tensor:
    """[B, C, 1, H, W] with padding before it: the last slice of the kernel."""
    padding = self._padding[2], self._padding[0]
    weight = self.weight[:, :, -1]
    return functional.conv2d(x[:, :, 0], weight, self.bias, padding=padding)[:, :, None]


def _kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
