"""The sections of `judges:`: vision-language models that are asked about images.

A judge answers in the process that asks (transformers), in vLLM servers that the run starts and
watches, or at any OpenAI-compatible endpoint.

The judge's token is never here, only the name of the environment variable that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from atelier.config.sections.base import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    operational,
)
from atelier.config.sections.servers import (
    Few,
    Placed,
    Placement,
    VllmConfig,
    gpu_conflicts,
    secret_conflicts,
    token_conflicts,
)
from atelier.legible import legible_value

# A name of the user's: part of keys, file names and logs.
JudgeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
# What the client sets itself, by the question and by the other keys of the section.
_RESERVED = ("model", "messages", "stream", "n", "response_format", "logprobs", "top_logprobs")
# Of a million tokens: sums of larger ones would be no number.
Price = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
ANSWER_LIMITS = ("max_completion_tokens", "max_tokens")
"""Parameters of a call that say how many tokens its answer takes at most."""
MOST_TOKENS = 10_000_000


class PricesConfig(Section):
    """What the judge's tokens cost, in one currency, per million."""

    input: Price = operational(0.0, "Price of a million input tokens, images included.")
    output: Price = operational(0.0, "Price of a million output tokens.")
    cached: Price | None = operational(
        None, "Price of a million input tokens read from the provider's cache; default: as input."
    )


class BudgetConfig(Section):
    """The most that may be spent, counted in the ledger over every run that shares it."""

    money: NonNegativeFloat | None = operational(
        None, "Most money, in the currency of the prices; default: no bound."
    )
    calls: NonNegativeInt | None = operational(None, "Most calls; default: no bound.")
    exceeded: Literal["stop", "missing"] = operational(
        "stop",
        "stop: the run stops before the call that would pass it, resumable; missing: questions "
        "have no answer from then on.",
    )


class AnswerCacheConfig(Section):
    """Answers on disk, so that the same question is paid for once."""

    folder: str | None = operational(
        None,
        "Folder of the answers; default: none, but for a suite's judge one in the stage's folder "
        "until everything is scored.",
    )
    max_mb: PositiveFloat = operational(
        1000.0, "Most megabytes (10^6 bytes); the answers that were not used longest go first."
    )


class JudgeVllmConfig(VllmConfig):
    """How a managed judge's vLLM is started."""

    data_parallel: Few = operational(1, "Copies of the model behind one server.")
    max_images: PositiveInt = operational(2, "Most images in a question.")
    sleep: bool = operational(
        False,
        "Give its GPU memory back while weights are updated, and take it again before scoring; "
        "for a judge that shares the trainer's GPUs.",
    )


class JudgeConfig(Placed):
    """A vision-language model that rewards and evaluations ask about images."""

    model: str = Field(min_length=1, description="What judges: directory, hub id or API name.")
    served_name: str | None = operational(
        None, "The endpoint's name for the model; default: the same."
    )
    placement: Placement = operational(
        "managed",
        "in_process: by transformers where it is asked, yes-or-no questions only; managed: vLLM, "
        "started, watched and stopped by the run; remote: endpoints at `urls`.",
    )
    urls: list[str] = operational(
        [], "Endpoints of a remote judge, up to and with their /v1, such as http://host:8000/v1."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="What it computes in where the run starts it; auto: as it was saved."
    )
    device: Literal["auto", "cpu", "cuda"] = operational(
        "auto", "Where an in_process or managed judge computes."
    )
    vllm: JudgeVllmConfig = operational(JudgeVllmConfig(), "How a managed judge's vLLM is started.")
    token_env: str | None = operational(
        None, "NAME of the environment variable with the token; default: no token is sent."
    )
    parameters: dict[str, JsonValue] = Field(
        default={},
        description="Sent as they are with every call, such as {temperature: 0, max_tokens: 512}; "
        "reasoning models reject both and take {max_completion_tokens: 4096}.",
    )
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema", description="How JSON is asked for: response_format, as far as it is taken."
    )
    top_logprobs: Annotated[int, Field(ge=2, le=100)] = Field(
        20, description="Most likely first tokens that a yes-or-no question asks for."
    )
    longest_side: PositiveInt | None = Field(
        None, description="Images with a longer side are made smaller, to it; default: sent whole."
    )
    image_detail: Literal["low", "high", "auto"] | None = Field(
        None, description="How closely OpenAI's models look at images; default: not sent."
    )
    measurements: PositiveInt = Field(
        1, description="Times each question is asked; the answer is the mean."
    )
    choices: PositiveInt = operational(
        1,
        "Measurements that one call asks for (`n`); its images are sent, and paid for, once. At "
        "most as many as measurements.",
    )
    min_measured_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="Share of the measurements that must be readable, else it is missing."
    )
    concurrency: PositiveInt = operational(8, "Calls at a time, of each rank or service.")
    requests_per_minute: PositiveFloat | None = operational(
        None, "Most calls a minute of each rank or service, evenly spaced; default: no bound."
    )
    tokens_per_minute: PositiveFloat | None = operational(
        None, "Most input and output tokens a minute, likewise; default: no bound."
    )
    timeout: PositiveFloat = operational(120.0, "Seconds one call may take.")
    deadline: PositiveFloat = operational(
        600.0, "Seconds after which what has no answer is missing."
    )
    retries: NonNegativeInt = operational(5, "Times a call that failed is made again.")
    prices: PricesConfig | None = operational(None, "What tokens cost; default: not counted.")
    ledger: str | None = operational(
        None,
        "JSON-lines file of calls, tokens and money, required with a budget; default: counted in "
        "memory only.",
    )
    budget: BudgetConfig | None = operational(None, "The most that may be spent; default: any.")
    cache: AnswerCacheConfig = operational(AnswerCacheConfig(), "Answers that are kept on disk.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, relative to the section, and problem of what cannot be used as it is set."""
        yield from super().conflicts()
        yield from token_conflicts(self.token_env, self.placement)
        yield from self._parameter_conflicts()
        yield from self._server_conflicts()
        if self.choices > self.measurements:
            yield (
                "choices",
                f"{self.choices} of a call, but only {self.measurements} measurement(s) are made",
            )
        if self.timeout > self.deadline:
            yield "timeout", f"{self.timeout:g} s is more than the deadline of {self.deadline:g} s"
        yield from self._budget_conflicts()

    @property
    def name_at_endpoint(self) -> str:
        """What requests call the model."""
        return self.served_name or self.model

    def _parameter_conflicts(self) -> Iterator[tuple[str, str]]:
        for name in _RESERVED:
            if name in self.parameters:
                yield f"parameters.{name}", "is set by the client; leave it out"
        mend = "name the variable of the environment that holds it in token_env"
        yield from secret_conflicts(self.parameters, mend)
        if {"max_tokens", "max_completion_tokens"} <= self.parameters.keys():
            yield "parameters.max_tokens", "excludes max_completion_tokens, its newer name"
        for name in ANSWER_LIMITS:
            limit = self.parameters.get(name)
            is_whole = type(limit) is int and 1 <= limit <= MOST_TOKENS
            if limit is not None and not is_whole:
                yield (
                    f"parameters.{name}",
                    f"{legible_value(limit)} is no whole number of tokens from 1 to "
                    f"{MOST_TOKENS:,}; leave it out for no limit",
                )
        try:
            json.dumps(self.parameters, allow_nan=False)
        except ValueError:
            yield "parameters", "must be JSON: NaN and infinity are not"

    def _server_conflicts(self) -> Iterator[tuple[str, str]]:
        yield from ((f"vllm.{key}", problem) for key, problem in self.vllm.conflicts())
        if self.placement == "managed" and self.vllm.sleep and not self.server.share_gpus:
            yield "vllm.sleep", "is for a judge that shares the trainer's GPUs (server.share_gpus)"
        ranks = self.vllm.tensor_parallel * self.vllm.data_parallel
        keys = "vllm.tensor_parallel x vllm.data_parallel"
        yield from gpu_conflicts(self.server, ranks, keys)

    def _budget_conflicts(self) -> Iterator[tuple[str, str]]:
        if self.budget is None:
            return
        if self.budget.money is None and self.budget.calls is None:
            yield "budget", "needs money or calls"
        if self.budget.money is not None and self.prices is None:
            yield "budget.money", "needs prices"
        if self.ledger is None:
            yield "ledger", "is required with a budget: what was spent must outlive the process"
