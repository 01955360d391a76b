"""Which policy a run trains."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atelier.config.schema import RunConfig
from atelier.policies.base import Policy


def load_policy(
    config: RunConfig, device: torch.device | str, rank: int = 0, prompts: Sequence[str] = ()
) -> Policy:
    """The policy of policy.family, with its weights.

    Args:
        prompts: that are known beforehand; some policies encode them once and for all.

    Raises:
        ConfigError: there is no such model, or it is of another kind.
    """
    if config.policy.family == "janus":
        from atelier.policies.janus.policy import JanusPolicy

        return JanusPolicy.load(config, device, rank)
    from atelier.policies.sd3.policy import SD3Policy

    return SD3Policy.load(
        config.policy,
        config.rollout,
        config.evaluation,
        config.train.seed,
        device,
        rank,
        prompts=prompts,
    )
