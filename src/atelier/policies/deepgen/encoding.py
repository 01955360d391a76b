"""Prompts of a run, encoded: each once by itself, or a batch together as the published code does.

The language model is there only while it is needed; it is larger than the transformer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atelier.config.facts.connector_fit import require_fitting
from atelier.config.sections.policy import PolicyConfig
from atelier.model_files import require_numbers
from atelier.policies.cached_encoder import CachedEncoder
from atelier.policies.deepgen.conditions import Conditions
from atelier.policies.deepgen.connector import Bridge
from atelier.policies.deepgen.inputs import Asked, Reader
from atelier.policies.deepgen.reading import fused_states
from atelier.policies.deepgen.source import Source
from atelier.policies.embedding_cache import Embedding, fingerprint, open_cache
from atelier.policies.freeing import give_back
from atelier.policies.language.plain_text import require_plain

BATCHES_KEPT = 8  # of prompts that were encoded together


@dataclass(frozen=True)
class Parts:
    """All that reads, on the device."""

    vlm: Any
    bridge: Bridge
    reader: Reader

    @classmethod
    def of(cls, source: Source, policy: PolicyConfig, device: torch.device) -> Parts:
        """Raises ConfigError where they are of different models."""
        vlm, bridge = source.vlm(policy.text.dtype), source.bridge()
        require_fitting(bridge.shape, vlm.config.to_dict(), source.transformer_config())
        reader = Reader(source.tokenizer(), source.template(), vlm, bridge.shape.queries)
        bridge = bridge.to(device, getattr(torch, policy.text.dtype))
        require_numbers(f"policy.text.dtype: {policy.text.dtype}", bridge.state_dict())
        return cls(vlm.to(device), bridge, reader)

    @torch.no_grad()
    def states(self, prompts: Sequence[Asked]) -> tuple[Tensor, Tensor]:
        """Hidden states [B, S, D], padded on the left, and which are a row's own [B, S]."""
        inputs = self.reader.inputs(prompts).to(self.vlm.device)
        return fused_states(self.vlm, self.bridge.meta_queries, inputs), inputs.mask


class PromptReader:
    """cached_encoder.TextEncoders of a model.

    Args:
        translates: whether prompts are encoded up to what the transformer sees, or, where the
            connector is trained, up to what that sees.
    """

    def __init__(
        self, source: Source, policy: PolicyConfig, device: torch.device, translates: bool
    ) -> None:
        self._source = source
        self._policy = policy
        self._device = device
        self._translates = translates
        self._parts: Parts | None = None

    @property
    def parts(self) -> Parts:
        """Loaded when they are asked for."""
        if self._parts is None:
            self._parts = Parts.of(self._source, self._policy, self._device)
        return self._parts

    @property
    def are_loaded(self) -> bool:
        return self._parts is not None

    def asked(self, words: str, images: Sequence[Tensor] = ()) -> Asked:
        """A prompt in tokens.

        Raises:
            DataError: its words have marks of the language model.
        """
        require_plain(words, self.parts.reader.tokenizer, "prompt")
        return self.parts.reader.asked(words, images)

    def encode(self, prompt: str) -> Embedding:
        """`tokens` [S, D] and `pooled` [P], or `tokens` alone, on the CPU in policy.text.dtype."""
        (found,) = self.encoded([self.asked(prompt)])
        return {name: value.cpu() for name, value in found.items()}

    @torch.no_grad()
    def encoded(self, asked: Sequence[Asked]) -> list[Embedding]:
        """The same of prompts, maybe with images, on the device. Several are a batch in which
        padding is as good as words: published, and another one with each other mate. Padding stands
        on the left."""
        states, _ = self.parts.states(asked)
        if not self._translates:
            return [{"tokens": row} for row in states]
        made = zip(*self.parts.bridge(states), strict=True)
        return [{"tokens": tokens, "pooled": pooled} for tokens, pooled in made]

    def free(self) -> None:
        """Give their memory back, the device's too; the next new prompt loads them again."""
        if self._parts is None:
            return
        self._parts = None
        give_back(self._device)

    def fingerprint(self) -> str:
        """What every embedding depends on beside its prompt, as 64 hex digits."""
        settings = {
            "dtype": self._policy.text.dtype,
            "adapter_alpha": self._policy.bases.adapter_alpha,
            "heads": self._policy.connector.heads,
            "device": self._device.type,
            "translates": self._translates,
        }
        return fingerprint(self._source.text_files(), settings)


class PromptEncoder(CachedEncoder):
    """A reader behind a cache."""

    def __init__(self, reader: PromptReader, policy: PolicyConfig, device: torch.device) -> None:
        super().__init__(reader, open_cache(policy.text, reader.fingerprint()), device)
        self._reader = reader
        self._is_published = policy.connector.padding == "maskless"
        self._batches: OrderedDict[tuple[str, ...], Conditions] = OrderedDict()

    @property
    def reads_together(self) -> bool:
        """Whether a prompt's embedding depends on the batch that it is in."""
        return self._is_published

    def encode(self, prompts: Sequence[str]) -> Conditions:
        """Of the prompts, in their order."""
        if self._is_published:
            return self._together(tuple(prompts))
        return Conditions(tuple(prompts), tuple(self.embeddings(prompts)))

    def encode_edits(
        self, prompts: Sequence[str], images: Sequence[Sequence[Tensor]]
    ) -> Conditions:
        """Of prompts about images [3, H, W] in [-1, 1]; not kept."""
        pairs = zip(prompts, images, strict=True)
        asked = [self._reader.asked(words, shown) for words, shown in pairs]
        found = [one for each in asked for one in self._reader.encoded([each])]
        return Conditions(tuple(prompts), tuple(found))

    def prepare(self, prompts: Sequence[str], rank: int = 0) -> None:
        """See CachedEncoder; what depends on its batch cannot be prepared."""
        if not self._is_published:
            super().prepare(prompts, rank)

    def _together(self, prompts: tuple[str, ...]) -> Conditions:
        found = self._batches.pop(prompts, None)
        if found is None:
            asked = [self._reader.asked(one) for one in prompts]
            found = Conditions(prompts, tuple(self._reader.encoded(asked)))
        self._batches[prompts] = found
        while len(self._batches) > BATCHES_KEPT:
            self._batches.popitem(last=False)
        return found
