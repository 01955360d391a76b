"""Which policy a run trains."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from atelier.config.schema import RunConfig
from atelier.config.sections.sampler import SamplerConfig
from atelier.policies.base import Policy

if TYPE_CHECKING:
    from atelier.policies.qwen.served.sampler import ServedSampler

# Families, and where their policies are: imported when one is used, with the libraries it needs.
_POLICIES = {
    "sd3": ("sd3.policy", "SD3Policy"),
    "deepgen": ("deepgen.policy", "DeepGenPolicy"),
    "janus": ("janus.policy", "JanusPolicy"),
    "qwen": ("qwen.policy", "QwenPolicy"),
}


def load_policy(
    config: RunConfig, device: torch.device | str, rank: int = 0, prompts: Sequence[str] = ()
) -> Policy:
    """The policy of policy.family, with its weights.

    Args:
        prompts: that are known beforehand; some policies encode them once and for all, others see
            whether they fit.

    Raises:
        ConfigError: there is no such model, or it is of another kind.
        DataError: a prompt cannot be read by the model.
    """
    module, name = _POLICIES[config.policy.family]
    kind: Any = getattr(import_module(f"atelier.policies.{module}"), name)
    policy: Policy = kind.load(config, device, rank, prompts)
    return policy


def served_sampler(
    policy: Policy,
    config: SamplerConfig,
    urls: Sequence[str],
    token: str | None,
    rank: int,
    folder: Path,
) -> ServedSampler:
    """Have a policy's servers draw what it is trained on; RunConfig.sampler says that it has any.

    Args:
        rank: asks one of the servers, by turns.
        folder: for weights.
    """
    from atelier.policies.qwen.policy import QwenPolicy
    from atelier.policies.qwen.served.server import Server

    assert isinstance(policy, QwenPolicy)
    servers = [Server(url, token, config.timeout) for url in urls]
    return policy.draw_at(servers, rank % len(servers), folder)
