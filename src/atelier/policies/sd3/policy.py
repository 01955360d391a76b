"""Stable Diffusion 3 as a flow policy.

Works for every pipeline of the real classes, the embedded tiny one and SD3.5-Medium alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline
from torch import Tensor, nn

from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.policies.cached_encoder import NO_PROMPT
from atelier.policies.sd3.conditions import Conditions, PromptEncoder
from atelier.policies.sd3.fast.graphs import Graphs, recorder
from atelier.policies.sd3.loading import load_image_parts, locate
from atelier.policies.sd3.prompts import prompt_encoder
from atelier.policies.sd3.transformer_policy import (
    TransformerPolicy,
    compiles,
    fresh,
    prepared,
)


class SD3Policy(TransformerPolicy):
    """A StableDiffusion3Pipeline that rolls out, replays and generates (policies.base.Policy)."""

    def __init__(
        self,
        pipeline: StableDiffusion3Pipeline,
        encoder: PromptEncoder,
        config: RunConfig,
        device: torch.device,
        rank: int = 0,
    ) -> None:
        transformer = prepared(pipeline.transformer, config.policy, config.train.seed, device)
        parts = (transformer, transformer, pipeline.vae, pipeline.scheduler)
        super().__init__(*parts, config, device, rank)
        self._encoder = encoder
        self._graphs = _graphs(config.policy, device)

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

    def fresh_module(self) -> nn.Module:
        return fresh(self._base, self._policy)

    def encode_texts(self, texts: Sequence[str]) -> Conditions:
        return self._encoder.encode(texts)

    def guided(self, conditions: Conditions) -> Conditions:
        return conditions.after(self._encoder.encode([NO_PROMPT] * len(conditions)))

    def predicted(
        self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Conditions
    ) -> Tensor:
        inputs = {
            "hidden_states": x,
            "timestep": timestep,
            "encoder_hidden_states": conditions.embeddings,
            "pooled_projections": conditions.pooled,
        }
        if self._graphs is not None and not torch.is_grad_enabled():
            return self._graphs(self._unwrapped(module), inputs)
        output: Any = module(**inputs, return_dict=False)
        predicted: Tensor = output[0]
        return predicted

    def _unwrapped(self, module: nn.Module) -> nn.Module:
        """Without what an engine wraps it in, which does nothing in a pass without gradients:
        policy.transformer: fast is not for ZeRO-3."""
        return module if isinstance(module, SD3Transformer2DModel) else self.module


def _graphs(policy: PolicyConfig, device: torch.device) -> Graphs | None:
    """Of what is compiled for a GPU."""
    if device.type != "cuda" or not compiles(policy, device):
        return None
    return Graphs(recorder(device))
