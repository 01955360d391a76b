"""Completions by transformers' own `generate`, each sample's by its own key.

The library searches greedily, and finds only the token that the key draws: everything else of a
step - caches, positions of image tokens, padding, ends - is its. Source: the Qwen vision GRPO
guide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from atelier.config.sections.completion import CompletionConfig
from atelier.policies.language.draws import token_at, uniforms
from atelier.policies.language.log_probs import (
    DrawnForm,
    TextForm,
    TokenSampler,
    text_log_probs,
    within,
)
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.inputs import Inputs
from atelier.policies.qwen.module import Form


@dataclass(frozen=True)
class Completions:
    """What was written until every row had ended, or the limit was reached: T tokens.

    Attributes:
        tokens: [B, T] int64, `pad` after a row's end.
        log_probs: [B, T] float32, 0 on padding.
        mask: [B, T] bool: a row's own tokens, with its end.
        ended: [B] bool, which rows came to an end.
    """

    tokens: Tensor
    log_probs: Tensor
    mask: Tensor
    ended: Tensor

    def own(self) -> list[list[int]]:
        """Each row's tokens."""
        rows = zip(self.tokens, self.mask, strict=True)
        return [tokens[mask].tolist() for tokens, mask in rows]


@dataclass(frozen=True)
class Writing:
    """How completions are written.

    Attributes:
        limit: most tokens of one, its end included.
        end: the token that ends one.
        never: tokens that are never drawn: an image's placeholder in a completion would be taken
            for an image that is not there.
        form: of the log-probs.
    """

    limit: int
    end: int
    pad: int
    sampler: TokenSampler
    form: Form
    never: tuple[int, ...] = ()


def writing_of(config: CompletionConfig, chat: Chat, vocabulary: int) -> Writing:
    """How a configuration wants completions to be written.

    Args:
        vocabulary: tokens that the model has logits of: more than the tokenizer has words for.
    """
    sampler = TokenSampler(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
    wordless = range(len(chat.tokenizer), vocabulary)
    never = tuple(one for one in (*chat.marks, *wordless) if one != chat.end)
    drawn = DrawnForm(sampler, never)
    form = drawn if config.log_prob == "sampler" else TextForm(config.temperature)
    return Writing(config.max_tokens, chat.end, chat.pad, sampler, form, never)


@torch.no_grad()
def write(encoder: Any, inputs: Inputs, keys: Sequence[int], writing: Writing) -> Completions:
    """A completion of each prompt.

    Args:
        encoder: Qwen2_5_VLForConditionalGeneration, in eval mode.
        inputs: prompts, padded on the left.
        keys: one a row. A token is a function of its row's key, its place and the model.
    """
    # What a checkpoint would have (penalties, a temperature) fills up what a call leaves out.
    encoder.generation_config = GenerationConfig()
    context = inputs.ids.shape[1]
    draws = _KeyedDraws(keys, context, writing, inputs.ids.device)
    sequences = encoder.generate(
        **inputs.arguments(),
        generation_config=GenerationConfig(
            max_new_tokens=writing.limit,
            do_sample=False,
            use_cache=True,
            eos_token_id=writing.end,
            pad_token_id=writing.pad,
        ),
        logits_processor=LogitsProcessorList([draws]),
    )
    tokens = sequences[:, context:]
    return completed(tokens, torch.stack(draws.log_probs, dim=1), writing.end)


def completed(tokens: Tensor, log_probs: Tensor, end: int) -> Completions:
    """What tokens and their log-probs [B, T] say, each up to where its row ends."""
    is_end = tokens == end
    mask = is_end.cumsum(1) - is_end.long() == 0
    return Completions(tokens, torch.where(mask, log_probs, 0.0), mask, is_end.any(1))


class _KeyedDraws(LogitsProcessor):
    """Lets the drawn token of each row through, and keeps its log-prob [B] of every step."""

    def __init__(
        self, keys: Sequence[int], context: int, writing: Writing, device: torch.device
    ) -> None:
        self._uniforms = uniforms(keys, writing.limit).to(device)
        self._context = context
        self._writing = writing
        self.log_probs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        writing, place = self._writing, input_ids.shape[1] - self._context
        allowed = within(scores, writing.sampler, never=writing.never)
        drawn = token_at(allowed, self._uniforms[:, place])[:, None]
        found = text_log_probs(scores[:, None], drawn, writing.form, start=place)
        self.log_probs.append(found[:, 0])
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)
