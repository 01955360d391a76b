"""A completion's request to vLLM, and what is read of its answer, or refused. Pure.

Prompts are sent in tokens, a source image as one placeholder with the picture beside it; what the
server made of that comes back, and has to be what the trainer reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atelier.errors import ConfigError
from atelier.policies.qwen.chat import ChatPrompt
from atelier.policies.qwen.generation import Writing
from atelier.policies.qwen.served.server import Json, Passing

PATH = "/inference/v1/generate"
_NEVER = -1e4  # added to a logit: no other one is so far away


@dataclass(frozen=True)
class Written:
    """A completion's tokens, its end included, and their log-probs."""

    tokens: list[int]
    log_probs: list[float]


def unexpanded(tokens: Sequence[int], placeholder: int) -> list[int]:
    """Tokens with one placeholder for each image."""
    before = [None, *tokens[:-1]]
    return [
        token
        for token, last in zip(tokens, before, strict=True)
        if not token == last == placeholder
    ]


def request(
    model: str, tokens: Sequence[int], image: str | None, key: int, writing: Writing
) -> dict[str, Any]:
    """One completion.

    Args:
        tokens: of the prompt, unexpanded.
        image: a source image in a data URI.
        key: of the sample, 64 bits; a seed has one less.
    """
    sampler = writing.sampler
    asked = {
        "max_tokens": writing.limit,
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "top_k": sampler.top_k,
        "seed": key >> 1,
        "stop_token_ids": [writing.end],
        "ignore_eos": True,  # a checkpoint may name other ends
        "logit_bias": {str(token): _NEVER for token in writing.never},
        "logprobs": 0,
        "detokenize": False,
    }
    pictures = [] if image is None else [{"type": "image_url", "url": image}]
    return {
        "model": model,
        "token_ids": list(tokens),
        "content_parts": pictures or None,
        "return_token_ids": True,
        "sampling_params": asked,
    }


def written(answer: Json, prompt: ChatPrompt, writing: Writing) -> Written:
    """The completion of an answer.

    Raises:
        Passing: it is cut off, or none.
        ConfigError: the server reads prompts otherwise, or draws what it is not to.
    """
    try:
        choice = answer["choices"][0]
        tokens = [int(one) for one in choice["token_ids"]]
        log_probs = [float(one["logprob"]) for one in choice["logprobs"]["content"]]
        read = answer["prompt_token_ids"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Passing(f"an answer that is no completion: {type(error).__name__}") from None
    _require_parity(read, prompt)
    marks = sorted(set(tokens).intersection(writing.never))
    if marks:
        raise ConfigError(
            f"rollout.sampler: the server drew tokens {marks} that it was told never to draw: it "
            "does not keep to logit_bias"
        )
    _require_whole(tokens, log_probs, choice.get("finish_reason"), prompt, writing)
    return Written(tokens, log_probs)


def _require_whole(
    tokens: list[int],
    log_probs: list[float],
    reason: str | None,
    prompt: ChatPrompt,
    writing: Writing,
) -> None:
    """Raises where a completion is neither as long as it may be nor ended, once."""
    ended = tokens[-1:] == [writing.end]
    is_done = ended or len(tokens) == writing.limit
    if reason == "length" and not is_done:
        raise ConfigError(
            f"rollout.sampler.vllm.max_model_len: the server ends completions at {len(tokens)} "
            f"tokens, and rollout.completion.max_tokens is {writing.limit}; beside a prompt of "
            f"{len(prompt.ids)} tokens it has no room for more"
        )
    if not is_done or writing.end in tokens[:-1] or len(log_probs) != len(tokens):
        raise Passing(f"a completion of {len(tokens)} tokens that is not whole ({reason})")


def _require_parity(read: Sequence[int] | None, prompt: ChatPrompt) -> None:
    """Raises ConfigError where the server conditions its tokens on another prompt."""
    own, theirs = list(prompt.ids), list(read or [])
    if own == theirs:
        return
    pairs = zip(own, theirs, strict=False)
    differ = next(
        (place for place, (a, b) in enumerate(pairs) if a != b), min(len(own), len(theirs))
    )
    raise ConfigError(
        f"rollout.sampler: the server reads a prompt as {len(theirs)} tokens and the trainer as "
        f"{len(own)} ({prompt.image} of its image); they differ from place {differ} on. Its "
        "processor sees images in another size, or it serves another model: for a remote server, "
        "serve the pipeline's own text encoder and processor (docs/servers.md)"
    )
