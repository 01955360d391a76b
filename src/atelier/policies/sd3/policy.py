"""Stable Diffusion 3 as a flow policy.

Works for every pipeline of the real classes, the embedded tiny one and SD3.5-Medium alike. The
transformer computes in `policy.dtype` under autocast, in the rollout and in the replay alike.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor, nn

from atelier.config.image_size import latent_side, vae_factor
from atelier.config.schema import RunConfig
from atelier.data.keys import key
from atelier.policies.flow.policy import FlowPolicy
from atelier.policies.precision import computing_in
from atelier.policies.sd3.conditions import NO_PROMPT, Conditions, PromptEncoder
from atelier.policies.sd3.decoder import ImageDecoder
from atelier.policies.sd3.encoder import ImageEncoder
from atelier.policies.sd3.loading import load_image_parts, locate
from atelier.policies.sd3.lora import add_adapter
from atelier.policies.sd3.prompts import prompt_encoder


class SD3Policy(FlowPolicy):
    """A StableDiffusion3Pipeline that rolls out, replays and generates (policies.base.Policy)."""

    def __init__(
        self,
        pipeline: StableDiffusion3Pipeline,
        encoder: PromptEncoder,
        config: RunConfig,
        device: torch.device,
        rank: int = 0,
    ) -> None:
        transformer, policy, seed = pipeline.transformer, config.policy, config.train.seed
        side = latent_side(policy.resolution, transformer.config, pipeline.vae.config)
        tokens = (side // transformer.config.patch_size) ** 2
        super().__init__(
            config.rollout, config.evaluation, pipeline.scheduler, tokens, seed, rank, device
        )
        self._policy = policy
        self._seed = seed
        self._encoder = encoder
        self._base = transformer
        self._decoder = ImageDecoder(pipeline.vae, policy.vae, device)
        self._image_encoder = ImageEncoder(pipeline.vae)
        self._latent_side = side
        self.image_side = side * vae_factor(pipeline.vae.config)
        self.module: nn.Module = self._make_module().to(device)
        self._reference: nn.Module | None = None

    @classmethod
    def load(
        cls,
        config: RunConfig,
        device: torch.device | str,
        rank: int = 0,
        prompts: Sequence[str] = (),
    ) -> SD3Policy:
        """Load a pipeline directory or hub id (`policy.path`, `policy.revision`).

        `prompts`, where they are known, are encoded before the transformer is loaded, so that it
        and the text encoders are never on the device together. Others are encoded as they come.
        """
        device, policy = torch.device(device), config.policy
        directory = locate(policy)
        encoder = prompt_encoder(directory, policy, device)
        if prompts:
            encoder.prepare(prompts, rank)
        pipeline = load_image_parts(directory, policy)
        return cls(pipeline, encoder, config, device, rank)

    def _make_module(self) -> nn.Module:
        transformer = self._base
        transformer.eval()  # no dropout: the rollout and the replay must agree
        if self._policy.gradient_checkpointing:
            transformer.enable_gradient_checkpointing()
        if self._policy.trainable == "lora":
            transformer.requires_grad_(False)
            add_adapter(transformer, self._policy.lora, seed=key("lora", self._seed))
        else:
            transformer.requires_grad_(True)
            # Fixed sine-cosine table, a buffer in diffusers; nothing else is frozen.
        return transformer

    def fresh_module(self) -> nn.Module:
        """The transformer's structure on the meta device, adapter included, without values."""
        with torch.device("meta"):
            module = type(self._base).from_config(self._base.config)
            if self._policy.trainable == "lora":
                add_adapter(module, self._policy.lora, seed=None)
        return module

    def trainable(self) -> dict[str, nn.Parameter]:
        named = self.module.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    # Reference -------------------------------------------------------------------------------

    def prepare_reference(self) -> None:
        """Keep what the policy is before training: a frozen copy, or nothing with an adapter."""
        if self._policy.trainable == "full":
            self._reference = copy.deepcopy(self.module).requires_grad_(False)

    @contextmanager
    def _adapter_off(self) -> Iterator[None]:
        self._base.disable_adapters()
        try:
            yield
        finally:
            self._base.enable_adapters()

    def reference_velocity(
        self,
        module: nn.Module,
        x: Tensor,
        timestep: Tensor,
        conditions: Conditions,
        guidance: float,
    ) -> Tensor:
        frozen = self._reference
        context: AbstractContextManager[None] = nullcontext() if frozen else self._adapter_off()
        with torch.no_grad(), context:
            return self.velocity(frozen or module, x, timestep, conditions, guidance)

    # Latents and images ----------------------------------------------------------------------

    def decode(self, latents: Tensor) -> np.ndarray:
        """Latents [B, C, h, w] to images uint8 [B, H, W, 3], for rewards and evaluation alike."""
        return self._decoder.decode(latents)

    def latents(self, images: np.ndarray, keys: Sequence[int]) -> Tensor:
        """See FlowModel."""
        return self._image_encoder.encode(images, self.noise(keys)[:, 0])

    def noise(self, keys: Sequence[int], draws: int = 1) -> Tensor:
        """Standard normal float32 [B, draws, C, h, w], one CPU generator a key: on every device and
        for every world size the same."""
        shape = (draws, self._base.config.in_channels, self._latent_side, self._latent_side)
        rows = [torch.randn(shape, generator=torch.Generator().manual_seed(one)) for one in keys]
        return torch.stack(rows).to(self.device)

    # The model -------------------------------------------------------------------------------

    def encode(self, prompts: Sequence[str]) -> Conditions:
        return self._encoder.encode(prompts)

    def velocity(
        self,
        module: nn.Module,
        x: Tensor,
        timestep: Tensor,
        conditions: Conditions,
        guidance: float,
    ) -> Tensor:
        """Predicted velocity, float32 [B, C, h, w]; guidance keeps gradients in both branches."""
        timestep = timestep.expand(len(x))
        if guidance == 1:
            return self._forward(module, x, timestep, conditions)
        unconditional = self._encoder.encode([NO_PROMPT] * len(x))
        twice = (torch.cat([x, x]), torch.cat([timestep, timestep]))
        both = self._forward(module, *twice, conditions.after(unconditional))
        without, with_prompt = both.chunk(2)
        return without + guidance * (with_prompt - without)

    def _forward(
        self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Conditions
    ) -> Tensor:
        with computing_in(self._policy.dtype, self.device):
            output: Any = module(
                hidden_states=x,
                timestep=timestep,
                encoder_hidden_states=conditions.embeddings,
                pooled_projections=conditions.pooled,
                return_dict=False,
            )
        return output[0].float()
