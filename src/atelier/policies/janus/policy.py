"""Janus-Pro as a token policy: an action is a token (policies.base.Policy).

Works for every checkpoint of the real classes, the embedded tiny one, 1B and 7B alike. The model
computes in `policy.dtype` under autocast, in the rollout and in the replay alike; what is trained
is held in float32. Source: FocusDiff and Janus-Pro-R1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import JanusForConditionalGeneration

from atelier.config.paths import from_root
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Generated, Part, Rollout, Sample
from atelier.policies.janus.checks import answers_of
from atelier.policies.janus.conversation import Conversation, Phrases
from atelier.policies.janus.loading import Checkpoint, load
from atelier.policies.janus.log_probs import ImageForm, Sampler
from atelier.policies.janus.module import JanusModule, Segment
from atelier.policies.janus.parts import Parts
from atelier.policies.janus.pixels import Pixels
from atelier.policies.janus.reading import require_readable
from atelier.policies.janus.sampling import Generation
from atelier.policies.janus.shapes.drawing import Drawing
from atelier.policies.janus.shapes.introspection import Introspection
from atelier.policies.janus.trainable import train_fully
from atelier.policies.language.draws import token_key
from atelier.policies.language.policy import LanguagePolicy


class JanusPolicy(LanguagePolicy[JanusModule]):
    """See policies.base.Policy."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: RunConfig,
        device: torch.device,
        prompts: Sequence[str] = (),
    ) -> None:
        model, processor = checkpoint.model, checkpoint.processor
        super().__init__(model, config, device)
        settings = config.rollout.introspection
        phrases = Phrases(settings.question, settings.draw_again, config.rollout.editing.wish)
        conversation = Conversation(processor.tokenizer, self._inner.image_tokens, phrases)
        positions = model.config.get_text_config().max_position_embeddings
        require_readable(prompts, conversation, config.rollout, positions)
        tokens = config.rollout.tokens
        sampler = Sampler(
            guidance_scale=config.rollout.guidance_scale,
            temperature=tokens.temperature,
            top_k=tokens.top_k,
            top_p=tokens.top_p,
        )
        parts = Parts(
            module=self._inner,
            conversation=conversation,
            pixels=Pixels(model, processor.image_processor),
            generation=Generation(self._inner, tokens.execution),
            sampler=sampler,
            form=ImageForm(tokens.log_prob, sampler),
            device=device,
            dtype=config.policy.dtype,
        )
        self._parts = parts
        self._shape: Drawing | Introspection
        if config.rollout.kind == "introspect":
            yes, no = answers_of(processor.tokenizer)
            self._shape = Introspection(parts, settings, yes, no)
        else:
            self._shape = Drawing(parts, edits=config.rollout.kind == "edit")

    @classmethod
    def load(
        cls,
        config: RunConfig,
        device: torch.device | str,
        rank: int = 0,
        prompts: Sequence[str] = (),
    ) -> JanusPolicy:
        """Load a model directory or hub id, or a file of weights in the original layout.

        Args:
            prompts: that are known beforehand.

        Raises:
            ConfigError: there is no such model, it is no Janus, its parts do not fit together, or
                what becomes of a prompt is longer than it reads.
            DataError: a prompt has marks of the language model.
        """
        return cls(open_checkpoint(config.policy), config, torch.device(device), prompts)

    @property
    def tools(self) -> Parts:
        """What its rollouts are made of, for who proves its weights (export)."""
        return self._parts

    # What is trained -----------------------------------------------------------------------------

    def _around(self, model: JanusForConditionalGeneration) -> JanusModule:
        return JanusModule(model, self._config.policy.gradient_checkpointing)

    def _train_fully(self, module: JanusModule) -> None:
        train_fully(module, text=self._config.rollout.kind == "introspect")

    def _segment(self, rollout: Rollout, part: Part) -> Segment:
        segment: Segment = rollout.record["segments"][part.segment]
        return segment

    # Training images -----------------------------------------------------------------------------

    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        seed = self._config.train.seed
        keys = [token_key(seed, self._step, one) for one in samples]
        return self._shape.rollout(module, samples, keys)

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        return self._shape.pack(rollout)

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        return self._shape.unpack(samples, tensors)

    # Evaluation images ---------------------------------------------------------------------------

    def generate(
        self, module: nn.Module, prompts: Sequence[Prompt], noise_keys: Sequence[int]
    ) -> Generated:
        """Images of the shape that is trained: drawn, edited, or drawn until one is accepted."""
        config = self._config.evaluation
        sampler = replace(self._parts.sampler, guidance_scale=config.guidance_scale)
        batches = []
        for start in range(0, len(prompts), config.micro_batch_size):
            chunk = slice(start, start + config.micro_batch_size)
            batches.append(self._shape.generate(prompts[chunk], noise_keys[chunk], sampler))
        return Generated(np.concatenate(batches))


def open_checkpoint(policy: PolicyConfig) -> Checkpoint:
    """What policy.path names, its trained part in the dtype it is trained in."""
    local = from_root(policy.path)
    path: str | Path = local if local.exists() else policy.path
    dtype = "float32" if policy.trainable == "full" else policy.base_dtype
    if policy.layout is None:
        return load(path, policy.revision, dtype)
    layout = from_root(policy.layout)
    where: str | Path = layout if layout.is_dir() else policy.layout
    return load(where, policy.revision, dtype, weights=path)
