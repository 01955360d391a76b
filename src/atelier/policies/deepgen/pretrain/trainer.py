"""Training of language model, connector and transformer at once, by rectified flow."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from atelier.policies.deepgen.inputs import Inputs
from atelier.policies.deepgen.layout import Model
from atelier.policies.deepgen.pretrain.options import Options
from atelier.policies.deepgen.reading import fused_states
from atelier.policies.deepgen.transformer import velocity
from atelier.policies.pretraining.compute import (
    adamw,
    autocast,
    compiled,
    decayed,
    follow,
    set_rate,
)

TRAIN_TIMESTEPS = 1000
TRAINED = ("transformer", "vlm", "bridge")


def trained_parts(model: Model) -> nn.ModuleDict:
    """By name; of the language model, its text alone is used."""
    return nn.ModuleDict({name: getattr(model, name) for name in TRAINED})


class Trainer:
    """x_sigma = (1 - sigma) x_0 + sigma noise; the model learns the velocity noise - x_0.

    `average` has the moving averages of the parts' weights.

    Args:
        latents: mean and standard deviation [N, C, h, w] of the pictures.
        inputs: their N prompts, and the empty one after them.
    """

    def __init__(
        self, model: Model, latents: tuple[Tensor, Tensor], inputs: Inputs, options: Options
    ) -> None:
        self.parts = trained_parts(model).train().requires_grad_(True)
        vlm: Any = self.parts["vlm"]
        vlm.model.visual.requires_grad_(False)
        self.average = copy.deepcopy(self.parts).eval().requires_grad_(False)
        self.step = 0
        self._latents, self._inputs, self._options = latents, inputs, options
        self._device = latents[0].device
        self._generator = torch.Generator(self._device).manual_seed(options.seed + 1)
        self._predicted = compiled(predicted, options.compile)
        weights = [one for one in self.parts.parameters() if one.requires_grad]
        self._optimizer = adamw(decayed(weights, options.weight_decay), (0.9, 0.99), self._device)

    def train_step(self) -> Tensor:
        """One update; returns the loss (a device scalar, not synchronised)."""
        options = self._options
        warm = min(1.0, (self.step + 1) / options.warmup_steps)
        set_rate(self._optimizer, options.learning_rate * warm)
        self._optimizer.zero_grad()
        loss = self._loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parts.parameters(), options.clip_norm)
        self._optimizer.step()
        self.step += 1
        follow(self.average.parameters(), self.parts.parameters(), options.ema_decay, self.step)
        return loss.detach()

    def _loss(self) -> Tensor:
        options, size = self._options, self._options.batch
        mean, deviation = self._latents
        where: dict[str, Any] = {"generator": self._generator, "device": self._device}
        index = torch.randint(len(mean), (size,), **where)
        clean = mean[index].float()
        clean = clean + deviation[index].float() * torch.randn(clean.shape, **where)
        noise = torch.randn(clean.shape, **where)
        logits = torch.randn(size, **where) * options.sigma_std + options.sigma_mean
        dropped = torch.rand(size, **where) < options.prompt_dropout
        told = self._inputs.rows(index.where(~dropped, len(mean)))
        sigma = logits.sigmoid()
        weight = sigma.view(-1, 1, 1, 1)
        with autocast(clean):
            found = self._predicted(
                self.parts, (1 - weight) * clean + weight * noise, sigma * TRAIN_TIMESTEPS, told
            )
        return functional.mse_loss(found.float(), noise - clean)


def predicted(parts: Any, x: Tensor, timestep: Tensor, inputs: Inputs) -> Tensor:
    """The velocity [B, C, h, w] of latents x, by parts as `trained_parts` gives them."""
    states = fused_states(parts["vlm"], parts["bridge"].meta_queries, inputs)
    tokens, pooled = parts["bridge"](states, inputs.mask)
    return velocity(parts["transformer"], x, timestep, tokens, pooled, inputs.mask)
