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
    decayed,
    follow,
    set_rate,
)
from atelier.policies.qwen.presets import PRESETS
from atelier.policies.qwen.pretrain.options import PainterOptions
from atelier.policies.qwen.pretrain.tellings import Conditions
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
        groups = decayed(model.parameters(), options.weight_decay)
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
        noisy = (1 - level) * clean + level * noise
        toward = trained_velocity(self.model, noisy, source, sigma, embeds, mask)
        return functional.mse_loss(toward, noise - clean)


def shifted(uniform: Tensor) -> Tensor:
    """Noise levels in [0, 1) of uniform numbers: as the scheduler shifts evenly spaced ones."""
    factor = math.exp(PRESETS[PRESET].scheduler["base_shift"])
    return factor * uniform / (1 + (factor - 1) * uniform)


def trained_velocity(
    model: QwenImageTransformer2DModel,
    tokens: Tensor,
    source: Tensor | None,
    sigma: Tensor,
    embeds: Tensor,
    mask: Tensor,
) -> Tensor:
    """`velocity` with the blocks in bfloat16 on a GPU. All else is in float32: the library would
    round the noise level to the precision of the blocks."""
    length, given = tokens.shape[1], _joined(tokens, source)
    hidden, text = model.img_in(given), model.txt_in(model.txt_norm(embeds))
    time = model.time_text_embed(sigma, hidden)
    rotation = model.pos_embed(
        [_shapes(tokens, source)], max_txt_seq_len=embeds.shape[1], device=tokens.device
    )
    with autocast(tokens):
        for block in model.transformer_blocks:
            text, hidden = block(
                hidden_states=hidden,
                encoder_hidden_states=text,
                encoder_hidden_states_mask=mask,
                temb=time,
                image_rotary_emb=rotation,
            )
    return model.proj_out(model.norm_out(hidden.float(), time))[:, :length]


def velocity(
    model: QwenImageTransformer2DModel,
    tokens: Tensor,
    source: Tensor | None,
    sigma: Tensor,
    embeds: Tensor,
    mask: Tensor,
) -> Tensor:
    """Velocity [B, tokens, 4 C], as the pipelines ask the transformer for it.

    Args:
        tokens: [B, tokens, 4 C] noisy.
        source: the same of the pictures that are edited, without noise.
        sigma: [B] noise levels.
        embeds: [B, L, D], with their mask [B, L].
    """
    return model(
        hidden_states=_joined(tokens, source),
        timestep=sigma,
        encoder_hidden_states=embeds,
        encoder_hidden_states_mask=mask,
        img_shapes=[_shapes(tokens, source)] * len(tokens),
        return_dict=False,
    )[0][:, : tokens.shape[1]]


def _joined(tokens: Tensor, source: Tensor | None) -> Tensor:
    return tokens if source is None else torch.cat([tokens, source], dim=1)


def _shapes(tokens: Tensor, source: Tensor | None) -> list[tuple[int, int, int]]:
    side = math.isqrt(tokens.shape[1])
    return [(1, side, side)] * (1 if source is None else 2)


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
        toward = velocity(model, tokens, source, sigma, embeds, mask)
        tokens = scheduler.step(toward, time, tokens, return_dict=False)[0]
    return tokens
