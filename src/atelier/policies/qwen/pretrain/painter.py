"""Training of the transformer by rectified flow, on the frozen writer's hidden states."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from torch import Tensor, nn
from torch.nn import functional

from atelier.policies.pretraining.compute import (
    Recorded,
    adamw,
    autocast,
    cosine,
    follow,
    set_rate,
)
from atelier.policies.qwen.pretrain.options import PainterOptions
from atelier.policies.qwen.pretrain.tellings import Conditions
from atelier.policies.qwen.presets import PRESETS
from atelier.policies.qwen.tiny.parts import PRESET


@dataclass(frozen=True)
class Pictures:
    """Tokens float16 [M, tokens, 4 C] of pictures, and of what they were made of, for edits."""

    targets: Tensor
    sources: Tensor | None


class PainterTrainer:
    """x_sigma = (1 - sigma) x_0 + sigma noise; the model learns the velocity noise - x_0.

    `average` is the moving average of the weights. Noise levels are as dense as those that the
    pipeline's scheduler samples at.
    """

    def __init__(
        self,
        model: QwenImageTransformer2DModel,
        pictures: Pictures,
        told: Conditions,
        options: PainterOptions,
    ) -> None:
        self.model = model.train().requires_grad_(True)
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.step = 0
        self._pictures, self._told, self._options = pictures, told, options
        device = pictures.targets.device
        self._generator = torch.Generator(device).manual_seed(options.seed + 1)
        matrices = [one for one in model.parameters() if one.ndim > 1]
        others = [one for one in model.parameters() if one.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": options.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._optimizer = adamw(groups, (0.9, 0.99), device)
        self._loss = torch.zeros((), device=device)
        self._update = Recorded(self._descend, self._generator, options.record)
        self._size = told.embeds[:1000].float().square().mean().sqrt()

    def train_step(self, done: float) -> Tensor:
        """One update; the loss, a scalar on the device that is not synchronised."""
        warm = min(1.0, (self.step + 1) / self._options.warmup_steps)
        set_rate(self._optimizer, self._options.learning_rate * warm * cosine(done))
        self._update()
        self.step += 1
        decay = self._options.ema_decay
        follow(self.average.parameters(), self.model.parameters(), decay, self.step)
        return self._loss.clone()

    def _descend(self) -> None:
        self._optimizer.zero_grad()
        loss = self._drawn_loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._options.clip_norm)
        self._optimizer.step()
        self._loss.copy_(loss.detach())

    def _drawn_loss(self) -> Tensor:
        told, pictures = self._told, self._pictures
        where: dict[str, Any] = {"generator": self._generator, "device": self._loss.device}
        rows = torch.randint(len(told.case), (self._options.batch,), **where)
        case = told.case[rows]
        clean = pictures.targets[case].float()
        noise = torch.randn(clean.shape, **where)
        sigma = shifted(torch.rand(len(rows), **where))
        level = sigma.view(-1, 1, 1)
        embeds = told.embeds[rows].float()
        embeds = embeds + self._options.drift * self._size * torch.randn(embeds.shape, **where)
        places = torch.arange(embeds.shape[1], device=embeds.device)
        mask = places < told.lengths[rows][:, None]
        source = None if pictures.sources is None else pictures.sources[case].float()
        with autocast(clean):
            velocity = predicted(
                self.model, (1 - level) * clean + level * noise, source, sigma, embeds, mask
            )
        return functional.mse_loss(velocity.float(), noise - clean)


def shifted(uniform: Tensor) -> Tensor:
    """Noise levels in [0, 1) of uniform numbers: as the scheduler shifts evenly spaced ones."""
    factor = math.exp(PRESETS[PRESET].scheduler["base_shift"])
    return factor * uniform / (1 + (factor - 1) * uniform)


def predicted(
    model: QwenImageTransformer2DModel,
    tokens: Tensor,
    source: Tensor | None,
    sigma: Tensor,
    embeds: Tensor,
    mask: Tensor,
) -> Tensor:
    """Velocity [B, tokens, 4 C], as the pipelines ask the transformer for it."""
    count, length = tokens.shape[:2]
    side = math.isqrt(length)
    shape = (1, side, side)
    given = tokens if source is None else torch.cat([tokens, source], dim=1)
    return model(
        hidden_states=given,
        timestep=sigma,
        encoder_hidden_states=embeds,
        encoder_hidden_states_mask=mask,
        img_shapes=[[shape] if source is None else [shape, shape]] * count,
        return_dict=False,
    )[0][:, :length]


@torch.no_grad()
def paint(
    model: QwenImageTransformer2DModel,
    scheduler: FlowMatchEulerDiscreteScheduler,
    noise: Tensor,
    embeds: Tensor,
    mask: Tensor,
    source: Tensor | None = None,
) -> Tensor:
    """Tokens [B, tokens, 4 C], sampled as the pipelines do without guidance, but edits many at
    once."""
    preset = PRESETS[PRESET]
    steps = preset.num_inference_steps
    levels = np.linspace(1.0, 1 / steps, steps)
    scheduler.set_timesteps(sigmas=levels, mu=preset.scheduler["base_shift"], device=noise.device)
    scheduler.set_begin_index(0)
    tokens = noise
    for time in scheduler.timesteps:
        sigma = time.expand(len(tokens)).to(tokens.dtype) / 1000
        velocity = predicted(model, tokens, source, sigma, embeds, mask)
        tokens = scheduler.step(velocity, time, tokens, return_dict=False)[0]
    return tokens
