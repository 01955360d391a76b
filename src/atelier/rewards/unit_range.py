"""Whether a sum of rewards lies between 0 and 1, by what each says of its scores.

Introspective GRPO rewards an answer by 1 - |reward - answer|, which means something
only there.
"""

from __future__ import annotations

from collections.abc import Container

from atelier.errors import ConfigError
from atelier.rewards.reward_set import RewardSet


def require_unit_range(rewards: RewardSet, own: Container[str]) -> None:
    """Refuse a sum that may pass 1, and a reward of the user's that may be below 0.

    Rewards that are built in keep their published formulas: a similarity may be below 0, and hardly
    ever is.

    Args:
        own: names of the user's rewards.

    Raises:
        ConfigError: naming the reward, and what to declare.
    """
    greatest = 0.0
    for name, reward in rewards.rewards.items():
        if not reward.weight:
            continue
        low, high = reward.scorer.value_range
        greatest += reward.weight * high
        if name in own and (low < 0 or reward.weight * high > 1):
            raise ConfigError(
                f"rewards.custom.{name}.function: introspection needs rewards between 0 and 1, and "
                f"its value_range is ({low:g}, {high:g}): declare what it is, "
                "@atelier.rewards.reward(value_range=(0, 1))"
            )
    if greatest > 1 + 1e-6:
        ranges = ", ".join(
            f"{name} up to {one.weight * one.scorer.value_range[1]:g}"
            for name, one in rewards.rewards.items()
        )
        raise ConfigError(
            f"rewards: introspection needs a sum between 0 and 1, and it may be {greatest:g} "
            f"({ranges}); lower the weights, or use other rewards"
        )
