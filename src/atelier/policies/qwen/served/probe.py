"""The probe: the log-probabilities of a fixed text, by the trainer and by a server.

Weights that were not brought, or brought wrongly, answer with other numbers. What it does not see
is a difference below rounding, such as one small update in 16 bits: that the weights are the latest
is known by their version (weights.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atelier.errors import ConfigError
from atelier.policies.language.log_probs import TextForm
from atelier.policies.qwen.chat import Chat, ChatPrompt
from atelier.policies.qwen.inputs import inputs_of
from atelier.policies.qwen.module import Segment
from atelier.policies.qwen.served.server import Json

TEXT = (
    "A red circle stands to the left of a blue square on white paper. Above both, in plain black "
    'letters, the word "seven" is written, and below them lie 12 small green triangles in a row.'
)


def probe_tokens(chat: Chat) -> tuple[int, ...]:
    """Of the text, as the policy's tokenizer reads it."""
    return tuple(chat.tokenizer(TEXT)["input_ids"])


@torch.no_grad()
def expected(module: nn.Module, chat: Chat, tokens: Sequence[int], device: torch.device) -> Tensor:
    """Log-probs [N - 1] of all tokens but the first, float32, on the CPU, by the module."""
    first = ChatPrompt(tuple(tokens[:1]), drop=0, image=0, tail=0)
    inputs = inputs_of(chat, [first], side="left", device=device)
    targets = torch.tensor([list(tokens[1:])], device=device)
    log_probs: Tensor = module(Segment(inputs, targets, TextForm()))
    return log_probs[0].float().cpu()


def question(model: str, tokens: Sequence[int]) -> dict[str, Any]:
    """The request that asks a server for the same."""
    asked = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
    return {"model": model, "token_ids": list(tokens), "sampling_params": asked}


def said(answer: Json, tokens: Sequence[int]) -> Tensor:
    """Its answer as log-probs [N - 1].

    Raises:
        ConfigError: it is none.
    """
    try:
        places = zip(answer["prompt_logprobs"][1:], tokens[1:], strict=True)
        return torch.tensor([place[str(token)]["logprob"] for place, token in places])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "rollout.sampler: the server does not say the log-probabilities of a prompt "
            f"({type(error).__name__}): is it vLLM, with --enable-scale-out?"
        ) from error
