"""Which images of a step stay together: sampled one after another by one rank, scored as one batch.

A reward that compares the images of a group has to be given all of them. A micro-batch may hold
less than a group; its neighbours then go where it goes.
"""

from __future__ import annotations

import math

from atelier.config.schema import RunConfig
from atelier.config.sections.rewards import RewardsConfig


def comparing_rewards(rewards: RewardsConfig) -> list[str]:
    """Keys of the rewards that compare the images of a group."""
    return [path for path, one in rewards.by_path().items() if one.needs_whole_groups()]


def images_together(config: RunConfig) -> int:
    """Images that stay together, in the order of the step: a micro-batch, or as many of them as
    hold whole groups where a reward compares their images."""
    size = config.rollout.micro_batch_size
    if not comparing_rewards(config.rewards):
        return size
    return math.lcm(size, config.rollout.group_size)
