"""What an exported text encoder must write and have painted as the trainer did.

    written      int64 [N, T]          completions drawn by the trainer's policy, trained
    log_probs, base_log_probs, greedy  of those (language/reference.py), over the full vocabulary
    latents      float32 [N, tokens, channels]   the initial noise, as the pipeline takes it
    sources      uint8 [N, H, W, 3]    what is edited; null where nothing is
    images       uint8 [N, H, W, 3]    painted after what is written
    base_images  uint8 [N, H, W, 3]    the same by the policy before training, of what it writes

Prompts, what the trainer read of them in tokens (`read`), the arguments of the pipeline (`call`)
and what else a user has to know (`settings`) are JSON in the header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.evaluation.requests import evaluation_key
from atelier.export.language.reference import TokenReference
from atelier.export.qwen.settings import call_of, settings_of
from atelier.export.reference import Differences
from atelier.policies.language.log_probs import TextForm
from atelier.policies.qwen.environment import Sampling
from atelier.policies.qwen.generation import Completions
from atelier.policies.qwen.module import Segment
from atelier.policies.qwen.parts import Parts
from atelier.policies.qwen.policy import QwenPolicy, completion_keys
from atelier.training.weights import copies, put_weights


@dataclass(frozen=True)
class WritingReference(TokenReference):
    """See the module."""

    written: np.ndarray
    latents: np.ndarray
    read: list[list[int]]
    settings: Mapping[str, Any]

    def compare(self, made: Mapping[str, np.ndarray]) -> Differences:
        exact = set(self.settings["dtypes"].values()) == {"float32"}
        return replace(super().compare(made), exact_images=exact)


def make_reference(
    config: RunConfig, tensors: Mapping[str, Tensor], prompts: Sequence[Prompt], device: str
) -> WritingReference:
    """What the trainer's policy writes and has painted for `prompts`, before and after training.

    Prompts, chances, noise, steps and guidance are those of the evaluation. The text encoder
    computes in float32, as the clean process does; the frozen parts in what they are held in, for
    they are the world that it was trained in, and of 20 billion parameters.
    """
    policy = QwenPolicy.load(_exact(config), device)
    hand = _Hand(policy.tools, prompts, config)
    before = copies(policy.trainable())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        base_images = hand.painted(hand.written())
        put_weights(policy.trainable(), tensors)
        written, greedy = hand.written(), hand.written(greedy=True)
        images, log_probs = hand.painted(written), hand.log_probs(written)
        put_weights(policy.trainable(), before)
        base_log_probs = hand.log_probs(written)
    policy.tools.environment.require_unchanged()
    return WritingReference(
        written=hand.together(written),
        log_probs=log_probs,
        base_log_probs=base_log_probs,
        greedy=hand.together(greedy),
        latents=hand.latents(),
        sources=hand.sources(),
        images=images,
        base_images=base_images,
        prompts=[prompt.text for prompt in prompts],
        read=[list(one.chat.ids) for one in hand.prompts],
        call=call_of(config, policy.tools),
        settings=settings_of(config, policy.tools),
    )


class _Hand:
    """Writes and has painted, one prompt after another: no row has padding."""

    def __init__(self, parts: Parts, prompts: Sequence[Prompt], config: RunConfig) -> None:
        evaluation = config.evaluation
        self._parts = parts
        self._keys = [evaluation_key(evaluation.seed, one) for one in prompts]
        self._sampling = Sampling(evaluation.num_inference_steps, evaluation.guidance_scale)
        self.prompts = parts.read(prompts)

    def written(self, greedy: bool = False) -> list[Completions]:
        writing = self._parts.writing
        if greedy:
            writing = replace(writing, sampler=replace(writing.sampler, top_k=1))
        keys = completion_keys(self._keys)
        return [
            self._parts.write([prompt], [key], writing)
            for prompt, key in zip(self.prompts, keys, strict=True)
        ]

    def painted(self, written: Sequence[Completions]) -> np.ndarray:
        """uint8 [N, H, W, 3]."""
        rows = zip(self.prompts, written, self._keys, strict=True)
        return np.concatenate(
            [
                self._parts.painter.paint([prompt], one.own(), [key], self._sampling)
                for prompt, one, key in rows
            ]
        )

    @torch.no_grad()
    def log_probs(self, written: Sequence[Completions]) -> np.ndarray:
        """float32 [N, T]."""
        rows = []
        for prompt, one in zip(self.prompts, written, strict=True):
            segment = Segment(self._parts.inputs([prompt.chat]), one.tokens, TextForm())
            rows.append(self._parts.module(segment).float())
        return self._filled(rows, 0)

    def together(self, written: Sequence[Completions]) -> np.ndarray:
        """Tokens int64 [N, T]."""
        return self._filled([one.tokens for one in written], self._parts.writing.pad)

    def latents(self) -> np.ndarray:
        found: np.ndarray = self._parts.environment.noise(self._keys).numpy()
        return found

    def sources(self) -> np.ndarray | None:
        sources = [np.asarray(one.source) for one in self.prompts if one.source is not None]
        return np.stack(sources) if sources else None

    def _filled(self, rows: Sequence[Tensor], value: int) -> np.ndarray:
        """Rows [1, t] as one [N, T], T being the most that may be written."""
        whole = torch.full((len(rows), self._parts.writing.limit), value, dtype=rows[0].dtype)
        for place, row in zip(whole, rows, strict=True):
            place[: row.shape[1]] = row[0]
        found: np.ndarray = whole.numpy()
        return found


def _exact(config: RunConfig) -> RunConfig:
    """The same, with a text encoder in float32."""
    full = {"dtype": "float32", "base_dtype": "float32", "gradient_checkpointing": False}
    return config.model_copy(update={"policy": config.policy.model_copy(update=full)})
