"""How likely the tokens of a completion are, and which were likeliest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .qwen_usage import embeddings

if TYPE_CHECKING:
    import numpy as np

END = "<|im_end|>"


def own(tokenizer: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Tokens [T] up to the one that ends them."""
    ends = (tokens == tokenizer.convert_tokens_to_ids(END)).nonzero()
    return tokens[: int(ends[0]) + 1] if len(ends) else tokens


def log_probs(encoder: Any, inputs: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Of tokens [T] after a prompt, over the full vocabulary, float32 [T]."""
    return _logits(encoder, inputs, tokens).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def margins(encoder: Any, tokenizer: Any, inputs: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Between the two likeliest that may be drawn at the places of tokens [T], in logits [T]."""
    logits = _logits(encoder, inputs, tokens)[:, : len(tokenizer)]
    marks = set(tokenizer.all_special_ids) - {tokenizer.convert_tokens_to_ids(END)}
    logits[:, sorted(marks)] = -torch.inf
    two = logits.topk(2).values
    return two[:, 0] - two[:, 1]


def filled(values: torch.Tensor, length: int, value: float) -> np.ndarray:
    """Values [t] as so many."""
    whole = torch.nn.functional.pad(values, (0, length - len(values)), value=value)
    array: np.ndarray = whole.cpu().numpy()
    return array


def _logits(encoder: Any, inputs: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Of every one of tokens [T] after the ones before it, float32 [T, V]."""
    hidden = embeddings(encoder, inputs, inputs["input_ids"].shape[1] - 1, tokens[None, :-1])
    logits: torch.Tensor = encoder.lm_head(hidden)[0].float()
    return logits
