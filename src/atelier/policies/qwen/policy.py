"""Qwen-Image's text encoder as a token policy: an action is a token of a completion
(policies.base.Policy).

It writes a completion to a prompt; a frozen pipeline paints from the hidden states over both, and
that image is rewarded. The encoder computes in `policy.dtype` under autocast, in the rollout, in
the replay and for the image alike. Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from diffusers import QwenImageEditPlusPipeline, QwenImagePipeline
from torch import Tensor, nn
from transformers import Qwen2_5_VLForConditionalGeneration

from atelier.config.schema import RunConfig
from atelier.data.keys import key
from atelier.data.prompts import Prompt
from atelier.errors import ConfigError
from atelier.policies.base import Generated, Part, Rollout, Sample, scored_rollout
from atelier.policies.language.draws import token_key
from atelier.policies.language.policy import LanguagePolicy
from atelier.policies.language.vocabulary import require_known_tokens
from atelier.policies.precision import computing_in
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.conditioning import Conditioning
from atelier.policies.qwen.environment import Sampling
from atelier.policies.qwen.generation import Completions, completed, writing_of
from atelier.policies.qwen.loading import (
    areas_of,
    load_encoder,
    load_pipeline,
    locate,
    open_environment,
    painting_device,
)
from atelier.policies.qwen.module import QwenModule, Segment
from atelier.policies.qwen.noise import noise_keys as image_keys
from atelier.policies.qwen.painting import Painter, negative_of
from atelier.policies.qwen.parts import Parts
from atelier.policies.qwen.reading import Read, require_readable
from atelier.policies.qwen.served.sampler import ServedSampler
from atelier.policies.qwen.served.server import Server
from atelier.policies.qwen.shuffling import of_other_prompts
from atelier.policies.qwen.templates import template_of


class QwenPolicy(LanguagePolicy[QwenModule]):
    """See policies.base.Policy."""

    def __init__(
        self,
        encoder: Qwen2_5_VLForConditionalGeneration,
        pipeline: QwenImagePipeline | QwenImageEditPlusPipeline,
        config: RunConfig,
        device: torch.device,
        prompts: Sequence[str] = (),
        rank: int = 0,
    ) -> None:
        rollout, evaluation = config.rollout, config.evaluation
        chat = Chat(pipeline, template_of(rollout.conditioning, pipeline), areas_of(config))
        conditioning = Conditioning(chat, rollout.conditioning.window)
        _require_kind(chat, config)
        vocabulary = encoder.get_input_embeddings().num_embeddings
        require_known_tokens(config.policy.path, chat.tokenizer, vocabulary)
        require_readable(prompts, chat, conditioning, rollout.completion.max_tokens)
        super().__init__(encoder, config, device)
        environment = open_environment(pipeline, config, painting_device(config, device, rank))
        guided = max(rollout.guidance_scale, evaluation.guidance_scale) > 1
        with computing_in(config.policy.dtype, device):
            dtype = getattr(torch, config.policy.dtype)
            negative = negative_of(self._inner, chat, conditioning, dtype) if guided else None
        self._sampler: ServedSampler | None = None
        self._parts = Parts(
            module=self._inner,
            chat=chat,
            writing=writing_of(rollout.completion, chat, vocabulary),
            environment=environment,
            painter=Painter(self._inner, conditioning, environment, negative),
            device=device,
            dtype=config.policy.dtype,
        )

    @classmethod
    def load(
        cls,
        config: RunConfig,
        device: torch.device | str,
        rank: int = 0,
        prompts: Sequence[str] = (),
    ) -> QwenPolicy:
        """Load a pipeline's directory or hub id.

        Args:
            prompts: that are known beforehand.

        Raises:
            ConfigError: there is no such pipeline, its parts do not fit together, or a prompt
                leaves no room for a completion.
            DataError: a prompt has marks of the language model.
        """
        directory = locate(config.policy)
        encoder = load_encoder(directory, config.policy)
        pipeline = load_pipeline(directory, config)
        return cls(encoder, pipeline, config, torch.device(device), prompts, rank)

    @property
    def tools(self) -> Parts:
        """What its rollouts are made of, for who proves its weights (export)."""
        return self._parts

    def draw_at(self, servers: Sequence[Server], own: int, folder: Path) -> ServedSampler:
        """Have the completions that are trained on drawn by servers. See ServedSampler."""
        self._sampler = ServedSampler(servers, own, folder, self._config, self._parts)
        return self._sampler

    # What is trained -----------------------------------------------------------------------------

    def _around(self, model: Qwen2_5_VLForConditionalGeneration) -> QwenModule:
        return QwenModule(model, self._config.policy.gradient_checkpointing)

    def _segment(self, rollout: Rollout, part: Part) -> Segment:
        inputs = self._parts.inputs(rollout.record["prompts"])
        return Segment(inputs, rollout.record["tokens"], self._parts.writing.form)

    # Training images -----------------------------------------------------------------------------

    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        config, seed, parts = self._config.rollout, self._config.train.seed, self._parts
        prompts = parts.read([one.prompt for one in samples])
        keys = [token_key(seed, self._step, one) for one in samples]
        noise = image_keys(seed, self._step, samples, config.shared_start)
        sampling = Sampling(config.num_inference_steps, config.guidance_scale)
        with parts.autocast():
            written = (self._sampler or parts).write(prompts, keys)
            own = written.own()
            images = parts.painter.paint(prompts, own, noise, sampling)
        return replace(
            self._rollout(samples, prompts, written),
            made=images,
            sources=[one.source for one in prompts if one.source is not None] or None,
            completions=[parts.chat.text(tokens) for tokens in own],
        )

    def _rollout(
        self, samples: Sequence[Sample], prompts: Sequence[Read], written: Completions
    ) -> Rollout:
        """Without images."""
        count = written.tokens.shape[1]
        record = {"prompts": [one.chat for one in prompts], "tokens": written.tokens}
        return replace(
            scored_rollout(samples, count, written.log_probs, record),
            segments=(slice(0, count),),
            longest=(self._parts.writing.limit,),
            mask=written.mask,
            ended=written.ended[:, None],
        )

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        assert rollout.old_log_probs is not None  # as rollout() makes it
        return {"tokens": rollout.record["tokens"], "old_log_probs": rollout.old_log_probs}

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        written = completed(tensors["tokens"], tensors["old_log_probs"], self._parts.writing.end)
        return self._rollout(samples, self._parts.read([one.prompt for one in samples]), written)

    # Evaluation images ---------------------------------------------------------------------------

    def generate(
        self, module: nn.Module, prompts: Sequence[Prompt], noise_keys: Sequence[int]
    ) -> Generated:
        """Images of what evaluation.completions says, each completion drawn by its image's key."""
        config, parts = self._config.evaluation, self._parts
        sampling = Sampling(config.num_inference_steps, config.guidance_scale)
        read, size = parts.read(prompts), config.micro_batch_size
        chunks = [slice(start, start + size) for start in range(0, len(read), size)]
        with parts.autocast():
            written = self._evaluated(prompts, read, noise_keys, chunks)
            images = [
                parts.painter.paint(
                    read[one], None if written is None else written[one], noise_keys[one], sampling
                )
                for one in chunks
            ]
        words = None if written is None else [parts.chat.text(tokens) for tokens in written]
        return Generated(np.concatenate(images), words)

    def _evaluated(
        self,
        prompts: Sequence[Prompt],
        read: Sequence[Read],
        noise_keys: Sequence[int],
        chunks: Sequence[slice],
    ) -> list[list[int]] | None:
        """Each row's completion in tokens; None where there are to be none."""
        which = self._config.evaluation.completions
        if which == "none":
            return None
        keys = completion_keys(noise_keys)
        written = [own for one in chunks for own in self._parts.write(read[one], keys[one]).own()]
        return of_other_prompts(written, prompts) if which == "shuffled" else written


def completion_keys(noise_keys: Sequence[int]) -> list[int]:
    """Of what is written before evaluation images with noise of such keys."""
    return [key("completion", one) for one in noise_keys]


def _require_kind(chat: Chat, config: RunConfig) -> None:
    """Raises ConfigError where the pipeline does something else than rollout.kind says."""
    kind = "edit" if chat.edits else "draw"
    if config.rollout.kind != kind:
        raise ConfigError(
            f"rollout.kind: {config.rollout.kind}, and {config.policy.path} is a pipeline for "
            f"{'edits' if chat.edits else 'text to image'}; use {kind}"
        )
