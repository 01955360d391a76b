"""How token policies act: how tokens are drawn, and what is drawn and said in one rollout."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from atelier.config.sections.base import NonNegativeInt, Section, Temperature, operational

TokenLogProb = Literal["cfg_tempered", "sampler", "conditional"]
Version = Literal["v1", "v2", "v3"]


def _said(sentence: str) -> str:
    if not sentence.strip():
        raise ValueError("must say something")
    return sentence


Sentence = Annotated[str, AfterValidator(_said)]


class TokensConfig(Section):
    """Tokens of images and answers (token policies)."""

    temperature: Temperature = Field(1.0, description="Of image tokens.")
    top_k: NonNegativeInt = Field(0, description="Likeliest image tokens to draw from; 0: all.")
    top_p: Annotated[float, Field(ge=0.01, le=1)] = Field(
        1.0, description="Share of the probability that image tokens are drawn from."
    )
    log_prob: TokenLogProb = Field(
        "cfg_tempered",
        description="Log-probability of an image token: of the guided logits divided by the "
        "guidance scale (as published), of the sampler itself, or of the prompt without guidance.",
    )
    execution: Literal["eager", "dynamic", "cuda_graph", "compile"] = operational(
        "eager",
        "How a token's forward pass is run over the keys and values before it: eager: these in "
        "tensors of a fixed size; dynamic: in ones that grow; cuda_graph: recorded once a rollout "
        "(GPUs); compile: compiled, minutes at first and faster afterwards.",
    )


class EditingRolloutConfig(Section):
    """Drawing a changed image of a source image, as Janus-Pro-R1 does."""

    wish: str = Field(
        " Draw the edited image.",
        description="What follows an instruction; a checkpoint answers to what it was fine-tuned "
        "on.",
    )


class IntrospectionConfig(Section):
    """Drawing, judging what was drawn, drawing again, as Janus-Pro-R1 does."""

    version: Version = Field(
        "v1",
        description="What the last images are trained on where an earlier one was accepted: v1: "
        "the accepted image, as a first drawing; v2: the accepted image, behind the answers; "
        "v3: what was drawn again all the same.",
    )
    rounds: Annotated[int, Field(ge=2, le=10)] = Field(
        2, description="Images of one rollout at most; an answer after each but the last."
    )
    answer_tokens: Annotated[int, Field(ge=2, le=100_000)] = Field(
        80, description="Tokens of an answer at most, its end among them."
    )
    answer_temperature: Temperature = Field(1.0, description="Of the answers' tokens.")
    train_end: bool = Field(
        True, description="Whether the token that ends an answer is trained (published: no)."
    )
    restricted_first_token: bool = Field(
        False,
        description="Whether the first token's probability is the one among Yes and No that it is "
        "drawn from (published: among all tokens).",
    )
    constant_context: bool = Field(
        True,
        description="Whether what comes before a segment is constant (published), or its "
        "embeddings are trained too.",
    )
    question: Sentence = Field(
        "Does this image show what was asked for?",
        description="What follows an image; a checkpoint answers to what it was fine-tuned on.",
    )
    draw_again: Sentence = Field(
        "Draw another image.", description="What follows an answer, before the next image."
    )
