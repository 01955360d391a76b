"""Where a reward or a judge is computed, and how the server is started where the run owns it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from atelier.config.secret_names import secret_parameters, secret_words
from atelier.config.sections.base import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    operational,
)
from atelier.config.urls import service_url_problem

# Of what takes a process or a thread each.
Few = Annotated[int, Field(ge=1, le=256)]
Placement = Literal["in_process", "managed", "remote"]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Capitals only: it is how variables are named, and a token pasted here by mistake is refused.
_TOKEN_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
_SECRET = re.compile(r"token|key|secret|passw|credential", re.IGNORECASE)
SECRET_PROBLEM = "looks like a secret, which does not belong in a file that is kept with the run"
IN_ENVIRONMENT = "set it in the environment that the run is started in"
Port = Annotated[int, Field(ge=0, le=65535)]


class ServerConfig(Section):
    """How a managed server is started; nothing here changes what it answers."""

    environment: str | None = operational(
        None,
        "Python environment it runs in: a name below environments/, or a path of a virtual "
        "environment; default: the pipeline's own; of judges and rollout.sampler: vllm.",
    )
    command: list[str] | None = operational(
        None,
        "Program and arguments instead of Atelier's own; {port} in them is the port to listen on.",
    )
    variables: dict[str, str] = operational(
        {}, "Environment variables it gets besides its own, such as {OMP_NUM_THREADS: 4}."
    )
    gpus: NonNegativeInt = operational(
        0, "GPUs of its own, beside the trainer's; 0: none of its own."
    )
    share_gpus: bool = operational(False, "It computes on the trainer's GPUs.")
    port: Port = operational(0, "Port of the first replica, the next ones behind it; 0: free ones.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, relative to the section, and problem of fields that do not fit each other."""
        if self.gpus and self.share_gpus:
            yield "share_gpus", f"excludes GPUs of its own (server.gpus {self.gpus})"
        if self.command is not None and not any("{port}" in word for word in self.command):
            yield "command", "must say where the port goes: {port} in one of its words"
        for name in secret_words(self.command or ()):
            yield "command", f"{name} {SECRET_PROBLEM}: {IN_ENVIRONMENT}"
        for name, value in self.variables.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                yield f"variables.{name}", "is no environment variable: letters, digits and _"
            elif _SECRET.search(name):
                yield f"variables.{name}", f"{SECRET_PROBLEM}: {IN_ENVIRONMENT}"


class Placed(Section):
    """What rewards and judges have in common: where they compute."""

    placement: Placement = operational("in_process", "Where it is computed.")
    urls: list[str] = operational([], "Servers of placement remote, such as http://host:8400.")
    replicas: Few = operational(1, "Servers started with placement managed.")
    first_answer: NonNegativeFloat = operational(
        30.0,
        "Seconds a remote one may take to answer at all before a run begins; 0: the run begins "
        "without looking for it.",
    )
    startup: PositiveFloat = operational(
        300.0, "Seconds a managed server may take until its golden sample is right."
    )
    server: ServerConfig = operational(ServerConfig(), "How a managed server is started.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, relative to the section, and problem of fields that do not fit each other."""
        if self.placement == "remote" and not self.urls:
            yield "urls", "is required with placement: remote"
        if self.placement != "remote" and self.urls:
            yield "urls", f"is for placement: remote, not for {self.placement}"
        if self.placement != "managed" and self.replicas > 1:
            yield "replicas", f"is for placement: managed, not for {self.placement}"
        if len({*self.urls}) < len(self.urls):
            yield "urls", "names each server once"
        for url in self.urls:
            if problem := service_url_problem(url):
                yield "urls", problem
        for key, problem in self.server.conflicts():
            yield f"server.{key}", problem
        last = self.server.port + self.replicas - 1
        if self.server.port and last > 65535:
            yield "server.port", f"{self.replicas} replicas would reach port {last}"


class VllmConfig(Section):
    """How vLLM is started."""

    tensor_parallel: Few = operational(1, "GPUs that share one copy of the model.")
    gpu_memory_share: Annotated[float, Field(gt=0, le=1)] = operational(
        0.9, "Share of a GPU's memory it takes; less where it shares the trainer's."
    )
    max_model_len: PositiveInt | None = operational(
        None, "Longest prompt and answer in tokens; default: what the model allows."
    )
    arguments: list[str] = operational([], "More arguments of its command line, such as --seed=1.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, relative to the section, and problem of what cannot be used as it is set."""
        for name in secret_words(self.arguments):
            yield "arguments", f"{name} {SECRET_PROBLEM}: {IN_ENVIRONMENT}"


def gpu_conflicts(server: ServerConfig, ranks: int, keys: str) -> Iterator[tuple[str, str]]:
    """Key and problem where a server has other GPUs than its vLLM computes on.

    Args:
        keys: whose values make `ranks`.
    """
    if server.gpus and server.gpus != ranks:
        yield "server.gpus", f"{server.gpus}, but {keys} is {ranks}"


def secret_conflicts(
    parameters: dict[str, JsonValue], mend: str = IN_ENVIRONMENT
) -> Iterator[tuple[str, str]]:
    """Key and problem of each of a section's `parameters` that is named as a secret is."""
    for key in secret_parameters(parameters, "parameters"):
        yield key, f"{SECRET_PROBLEM}: {mend}"


def token_conflicts(token_env: str | None, placement: Placement) -> Iterator[tuple[str, str]]:
    """Key and problem of the name of a token's variable. Never the value: it may be the token."""
    if token_env is None:
        return
    if not _TOKEN_VARIABLE.fullmatch(token_env):
        yield (
            "token_env",
            "must be the name of an environment variable in capitals, such as OPENAI_API_KEY, "
            "and never the token itself",
        )
    if placement == "managed":
        yield "token_env", "is for placement: remote; a managed server's token is the run's own"
