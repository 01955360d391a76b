"""Training of the transformer by rectified flow, with averaged weights."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from diffusers import SD3Transformer2DModel
from torch import Tensor
from torch.nn import functional

from atelier.policies.pretraining.compute import adamw, autocast, compiled, follow, set_rate
from atelier.policies.sd3.pretrain.options import Options

TRAIN_TIMESTEPS = 1000


class FlowTrainer:
    """x_sigma = (1 - sigma) x_0 + sigma noise; the model learns the velocity noise - x_0.

    `average` is the exponential moving average of the weights. Latents are given by mean and
    standard deviation [N, C, h, w], prompts by embeddings [N, L, D] and pooled [N, P]; `empty` is
    the pair for the empty prompt.
    """

    def __init__(
        self,
        model: SD3Transformer2DModel,
        latents: tuple[Tensor, Tensor],
        prompts: tuple[Tensor, Tensor],
        empty: tuple[Tensor, Tensor],
        options: Options,
    ) -> None:
        self.model = model.train().requires_grad_(True)
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.step = 0
        self._latents, self._prompts, self._empty = latents, prompts, empty
        self._options = options
        self._device = latents[0].device
        self._generator = torch.Generator(self._device).manual_seed(options.seed + 1)
        groups = [{"params": list(model.parameters()), "weight_decay": options.weight_decay}]
        self._optimizer = adamw(groups, (0.9, 0.99), self._device)
        self._loss: Callable[..., Tensor] = compiled(_loss, options.compile)

    def train_step(self) -> Tensor:
        """One update; returns the loss (a device scalar, not synchronised)."""
        options = self._options
        warm = min(1.0, (self.step + 1) / options.warmup_steps)
        set_rate(self._optimizer, options.learning_rate * warm)
        loss = self._loss(self.model, *self._draw())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        follow(self.average.parameters(), self.model.parameters(), options.ema_decay, self.step)
        return loss.detach()

    def _draw(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        size = self._options.batch
        mean, deviation = self._latents
        where: dict[str, Any] = {"generator": self._generator, "device": self._device}
        index = torch.randint(len(mean), (size,), **where)
        clean = mean[index].float()
        clean = clean + deviation[index].float() * torch.randn(clean.shape, **where)
        noise = torch.randn(clean.shape, **where)
        logits = torch.randn(size, **where) * self._options.sigma_std + self._options.sigma_mean
        dropped = torch.rand(size, **where) < self._options.prompt_dropout
        embeddings, pooled = (
            torch.where(dropped.view(-1, *[1] * (full.dim() - 1)), empty, full[index]).float()
            for full, empty in zip(self._prompts, self._empty, strict=True)
        )
        return clean, noise, logits.sigmoid(), embeddings, pooled


def _loss(
    model: SD3Transformer2DModel,
    clean: Tensor,
    noise: Tensor,
    sigma: Tensor,
    embeddings: Tensor,
    pooled: Tensor,
) -> Tensor:
    weight = sigma.view(-1, 1, 1, 1)
    with autocast(clean):
        velocity = model(
            hidden_states=(1 - weight) * clean + weight * noise,
            encoder_hidden_states=embeddings,
            pooled_projections=pooled,
            timestep=sigma * TRAIN_TIMESTEPS,
            return_dict=False,
        )[0]
    return functional.mse_loss(velocity.float(), noise - clean)
