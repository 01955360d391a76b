"""Stable Diffusion 3's transformer and autoencoder as a flow policy, whatever encodes its prompts.

The transformer computes in `policy.dtype` under autocast, in the rollout and in the replay alike.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel
from torch import Tensor, nn

from atelier.config.image_size import latent_side, vae_factor
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.data.keys import key
from atelier.policies.flow.denoising import guided_velocity
from atelier.policies.flow.noise import Noise, Request
from atelier.policies.flow.policy import FlowPolicy
from atelier.policies.grey_levels import GreyLevels
from atelier.policies.precision import computing_in
from atelier.policies.sd3.decoder import ImageDecoder
from atelier.policies.sd3.encoder import ImageEncoder
from atelier.policies.sd3.fast.install import make_fast
from atelier.policies.sd3.lora import add_adapter

DRAWING_THREADS = 4  # beside a GPU
DRAWN_AHEAD = 2  # requests: what a micro-batch starts from is drawn while another is denoised


class TransformerPolicy(FlowPolicy):
    """A transformer that rolls out, replays and generates (policies.base.Policy).

    Args:
        transformer: as `prepared` leaves it.
        module: what is trained: the transformer, or what holds it.
        vae: frozen.
        scheduler: of the pipeline.
    """

    def __init__(
        self,
        transformer: SD3Transformer2DModel,
        module: nn.Module,
        vae: AutoencoderKL,
        scheduler: Any,
        config: RunConfig,
        device: torch.device,
        rank: int = 0,
    ) -> None:
        policy = config.policy
        side = latent_side(policy.resolution, transformer.config, vae.config)
        tokens = (side // transformer.config.patch_size) ** 2
        super().__init__(
            config.rollout, config.evaluation, scheduler, tokens, config.train.seed, rank, device
        )
        self._policy = policy
        self._base = transformer
        self._decoder = ImageDecoder(vae, policy.vae, device, compiles(policy, device))
        self._encoder_of_images = ImageEncoder(vae)
        latents = (transformer.config.in_channels, side, side)
        if device.type == "cuda":
            self._noise = Noise(latents, device, threads=DRAWING_THREADS, ahead=DRAWN_AHEAD)
        else:  # who computes on the same cores has no use for what is drawn meanwhile
            self._noise = Noise(latents, device, threads=torch.get_num_threads())
        self.image_side = side * vae_factor(vae.config)
        self.module: nn.Module = module.to(device)
        self._reference: nn.Module | None = None

    def trainable(self) -> dict[str, nn.Parameter]:
        named = self.module.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    # Reference -------------------------------------------------------------------------------

    def prepare_reference(self) -> None:
        """Keep what the policy is before training: a frozen copy, or nothing with an adapter."""
        if self._policy.trainable != "lora":
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
        conditions: Any,
        guidance: float,
    ) -> Tensor:
        frozen = self._reference
        context: AbstractContextManager[None] = nullcontext() if frozen else self._adapter_off()
        with torch.no_grad(), context:
            return self.velocity(frozen or module, x, timestep, conditions, guidance)

    # Latents and images ----------------------------------------------------------------------

    def decode(self, latents: Tensor) -> GreyLevels:
        """Latents [B, C, h, w] to images [B, H, W, 3], for rewards and evaluation alike."""
        return self._decoder.decode(latents)

    def latents(self, images: np.ndarray, keys: Sequence[int]) -> Tensor:
        """See FlowModel."""
        return self._encoder_of_images.encode(images, self.noise(keys)[:, 0])

    def noise(self, keys: Sequence[int], draws: int = 1) -> Tensor:
        """Standard normal float32 [B, draws, C, h, w]; see flow.noise."""
        return self._noise(Request(tuple(keys), draws))

    def expect_noise(self, requests: Sequence[Request]) -> None:
        self._noise.expect(requests)

    def close(self) -> None:
        self._noise.close()

    # The model -------------------------------------------------------------------------------

    def velocity(
        self,
        module: nn.Module,
        x: Tensor,
        timestep: Tensor,
        conditions: Any,
        guidance: float,
    ) -> Tensor:
        """Predicted velocity, float32 [B, C, h, w]; guidance keeps gradients in both branches."""
        timestep = timestep.expand(len(x))
        if guidance == 1:
            return self._forward(module, x, timestep, conditions)
        twice = (torch.cat([x, x]), torch.cat([timestep, timestep]))
        both = self._forward(module, *twice, self.guided(conditions))
        without, with_prompt = both.chunk(2)
        return guided_velocity(without, with_prompt, guidance)

    def _forward(self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Any) -> Tensor:
        with computing_in(self._policy.dtype, self.device):
            return self.predicted(module, x, timestep, conditions).float()

    @abstractmethod
    def guided(self, conditions: Any) -> Any:
        """The conditions of as many empty prompts, and these after them."""

    @abstractmethod
    def predicted(self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Any) -> Tensor:
        """The velocity [B, C, h, w] that a module gives, timestep [B]."""


def prepared(
    transformer: SD3Transformer2DModel, policy: PolicyConfig, seed: int, device: torch.device
) -> SD3Transformer2DModel:
    """The transformer with what `policy.trainable` says of it, in place; it stays where it is.

    Args:
        device: where it will compute.
    """
    transformer.eval()  # no dropout: the rollout and the replay must agree
    if policy.gradient_checkpointing:
        transformer.enable_gradient_checkpointing()
    if policy.trainable == "lora":
        transformer.requires_grad_(False)
        add_adapter(transformer, policy.lora, seed=key("lora", seed))
    else:
        transformer.requires_grad_(True)  # all: the table of positions is a buffer in diffusers
    if policy.transformer == "fast":
        # What a language model reads has any length; embeddings of SD3's encoders have one.
        any_length = policy.family == "deepgen"
        make_fast(transformer, compiles(policy, device), any_length, policy.lora.folded)
    return transformer


def compiles(policy: PolicyConfig, device: torch.device) -> bool:
    """Whether the transformer's blocks, and the autoencoder's decoder, are compiled."""
    if policy.transformer != "fast":
        return False
    return device.type == "cuda" if policy.compile is None else policy.compile


def fresh(transformer: SD3Transformer2DModel, policy: PolicyConfig) -> SD3Transformer2DModel:
    """Its structure on the meta device, adapter included, without values."""
    with torch.device("meta"):
        module = type(transformer).from_config(transformer.config)
        if policy.trainable == "lora":
            add_adapter(module, policy.lora, seed=None)
    return module
