"""The section `rollout.sampler`: servers that draw completions in the policy's place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from atelier.config.sections.base import Fraction, PositiveFloat, operational
from atelier.config.sections.servers import Few, Placed, VllmConfig, gpu_conflicts, token_conflicts

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for, an adapter's or more


class SamplerConfig(Placed):
    """vLLM servers that are brought the trained weights before each rollout
    (rollout.completion.backend: vllm)."""

    placement: Literal["managed", "remote"] = operational(
        "managed",
        "managed: started, watched and stopped by the run; remote: servers at `urls`, which must "
        "see the run's directory under the same path.",
    )
    urls: list[str] = operational([], "Servers of placement remote, such as http://host:8000.")
    replicas: Few = operational(
        1, "Servers started with placement managed; each rank asks one of them."
    )
    vllm: VllmConfig = operational(VllmConfig(), "How a managed server's vLLM is started.")
    token_env: str | None = operational(
        None, "NAME of the environment variable with a remote server's token; default: none."
    )
    tolerance: Fraction = operational(
        0.1,
        "Largest mean gap between the trainer's and a server's log-probabilities of a token, of "
        "the probe after weights were brought, and of a step's completions; above it the run "
        "stops.",
    )
    timeout: PositiveFloat = operational(600.0, "Seconds one request may take.")
    deadline: PositiveFloat = operational(
        1800.0, "Seconds for which a server without an answer is asked again."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, relative to the section, and problem of what cannot be used as it is set."""
        yield from super().conflicts()
        yield from token_conflicts(self.token_env, self.placement)
        yield from ((f"vllm.{key}", problem) for key, problem in self.vllm.conflicts())
        yield from gpu_conflicts(self.server, self.vllm.tensor_parallel, "vllm.tensor_parallel")
        if self.timeout > self.deadline:
            yield "timeout", f"{self.timeout:g} s is more than the deadline of {self.deadline:g} s"
