"""Which policy a run trains."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from atelier.config.schema import RunConfig
from atelier.policies.base import Policy

# Families, and where their policies are: imported when one is used, with the libraries it needs.
_POLICIES = {
    "sd3": ("sd3.policy", "SD3Policy"),
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
