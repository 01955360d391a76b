"""How a policy that writes draws its completions, and what they are evaluated with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import NonNegativeInt, Section, Temperature

CompletionBackend = Literal["transformers", "vllm"]
CompletionLogProb = Literal["full", "sampler"]
EvaluatedCompletions = Literal["own", "none", "shuffled"]


class CompletionConfig(Section):
    """What a policy writes to a prompt before an image is made of both."""

    max_tokens: Annotated[int, Field(ge=2)] = Field(
        512, description="Most tokens of a completion, the one that ends it included."
    )
    temperature: Temperature = Field(1.0, description="Of the completion's tokens.")
    top_k: NonNegativeInt = Field(0, description="Likeliest tokens to draw from; 0: all.")
    top_p: Annotated[float, Field(ge=0.01, le=1)] = Field(
        1.0, description="Share of the probability that tokens are drawn from."
    )
    log_prob: CompletionLogProb = Field(
        "full",
        description="Log-probability of a token: over the full vocabulary, at the temperature (as "
        "published); of the sampler itself, within top_k and top_p and without marks, which are "
        "never drawn.",
    )
    backend: CompletionBackend = Field(
        "transformers",
        description="What generates completions to train on: the trainer itself; servers that are "
        "brought its weights (rollout.sampler).",
    )
