"""DeepGen as a flow policy: its transformer is trained on what a frozen language model says.

Works for every model of the real classes, the embedded tiny one and DeepGen 1.0 alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from PIL.Image import Image
from torch import Tensor, nn

from atelier.config.facts.deepgen import SEEN_AS_A_TOKEN
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.data.ground_truth import required_picture, source_image
from atelier.data.pictures import square
from atelier.data.prompts import Prompt
from atelier.errors import ConfigError
from atelier.policies.base import Rollout, Sample
from atelier.policies.cached_encoder import NO_PROMPT
from atelier.policies.deepgen.conditions import Conditions
from atelier.policies.deepgen.connector import Bridge
from atelier.policies.deepgen.encoding import PromptEncoder, PromptReader
from atelier.policies.deepgen.module import DeepGenModule
from atelier.policies.deepgen.references import pixels, reference_latents
from atelier.policies.deepgen.source import Source, open_source
from atelier.policies.deepgen.transformer import masked
from atelier.policies.sd3.transformer_policy import TransformerPolicy, fresh, prepared


class DeepGenPolicy(TransformerPolicy):
    """A DeepGen model that rolls out, replays and generates (policies.base.Policy)."""

    def __init__(
        self,
        source: Source,
        encoder: PromptEncoder,
        config: RunConfig,
        device: torch.device,
        rank: int = 0,
    ) -> None:
        policy = config.policy
        held = policy.base_dtype if policy.trainable == "lora" else "float32"
        loaded = source.transformer(held)
        transformer = masked(prepared(loaded, policy, config.train.seed, device))
        self._vae = source.vae()
        self._bridge = _trained_bridge(source, policy)
        module = DeepGenModule(transformer, self._bridge)
        parts = (transformer, module, self._vae, source.scheduler())
        super().__init__(*parts, config, device, rank)
        self._encoder = encoder
        self._edits = config.rollout.kind == "edit"
        if self._edits and self.image_side % SEEN_AS_A_TOKEN:
            raise ConfigError(
                f"policy.resolution: {self.image_side} pixels; the language model sees images "
                f"whose sides are multiples of {SEEN_AS_A_TOKEN} (rollout.kind edit)"
            )

    @classmethod
    def load(
        cls,
        config: RunConfig,
        device: torch.device | str,
        rank: int = 0,
        prompts: Sequence[str] = (),
    ) -> DeepGenPolicy:
        """Load what `policy.path` names (see source.open_source).

        `prompts`, where they are known, are encoded before the transformer is loaded: where the
        cache holds all of them, it and the language model are never on the device together. Others
        are encoded as they come, and so are edits, whose source images the language model sees, and
        all prompts where an embedding depends on its batch (policy.connector.padding: maskless).
        """
        device, policy = torch.device(device), config.policy
        source = open_source(policy)
        reader = PromptReader(source, policy, device, policy.trainable != "dit_connector")
        encoder = PromptEncoder(reader, policy, device)
        if prompts and config.rollout.kind != "edit":
            encoder.prepare(prompts, rank)
        return cls(source, encoder, config, device, rank)

    def fresh_module(self) -> nn.Module:
        bridge = self._bridge
        with torch.device("meta"):
            again = None if bridge is None else _without_queries(Bridge(bridge.shape))
        return DeepGenModule(fresh(self._base, self._policy), again)

    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        rollout = super().rollout(module, samples)
        if not self._edits:
            return rollout
        return replace(rollout, sources=[self.source(one.prompt) for one in samples])

    # What images are painted from ----------------------------------------------------------------

    def encode(self, prompts: Sequence[Prompt], guidance: float) -> Conditions:
        if not self._edits:
            return self.encode_texts([one.text for one in prompts])
        # Samples of a group have one prompt and one image: each pair is read once.
        pairs = {(one.dataset_id, one.prompt_id): one for one in prompts}
        places = {identity: place for place, identity in enumerate(pairs)}
        read = self._encode_edits([*pairs.values()], guidance)
        return read.rows([places[one.dataset_id, one.prompt_id] for one in prompts])

    def _encode_edits(self, prompts: Sequence[Prompt], guidance: float) -> Conditions:
        shown = [pixels(self.source(one)) for one in prompts]
        images = [[one] for one in shown]
        references = [[one] for one in reference_latents(self._vae, shown)]
        against = None
        if guidance != 1:
            nothing = self._encoder.encode_edits([NO_PROMPT] * len(prompts), images)
            against = replace(nothing, references=references)
        asked = self._encoder.encode_edits([one.text for one in prompts], images)
        return replace(asked, references=references, against=against)

    def encode_texts(self, texts: Sequence[str]) -> Conditions:
        return self._encoder.encode(texts)

    def guided(self, conditions: Conditions) -> Conditions:
        if conditions.against is not None:
            return conditions.after(conditions.against)
        nothing = (NO_PROMPT,) * len(conditions)
        if self._encoder.reads_together:
            return self._encoder.encode((*nothing, *conditions.words))
        return conditions.after(self._encoder.encode(nothing))

    def predicted(
        self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Conditions
    ) -> Tensor:
        velocity: Tensor = module(x, timestep, conditions)
        return velocity

    def source(self, prompt: Prompt) -> Image:
        """The image that a prompt changes, as the policy sees it."""
        found = required_picture(source_image(prompt, self.image_side), prompt, "source")
        return square(found, self.image_side)


def _trained_bridge(source: Source, policy: PolicyConfig) -> Bridge | None:
    """The connector, where it is trained."""
    if policy.trainable != "dit_connector":
        return None
    bridge = source.bridge().requires_grad_(True)
    bridge.connector.gradient_checkpointing = policy.gradient_checkpointing
    return _without_queries(bridge)


def _without_queries(bridge: Bridge) -> Bridge:
    """They are read by the frozen language model."""
    bridge.meta_queries.requires_grad_(False)
    return bridge
