"""Which rewards exist. A new one: a file with a scorer, a line here, a section in the schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atelier.config.rewards import RewardsConfig
from atelier.rewards.base import Scorer
from atelier.rewards.jpeg import JpegCompressibility, JpegIncompressibility
from atelier.rewards.ocr import OcrScorer
from atelier.rewards.reward_set import Reward, RewardSet

# Name of the section in `rewards:` -> what makes a scorer of it.
SCORERS: dict[str, Callable[[Any], Scorer]] = {
    "ocr": OcrScorer,
    "jpeg_compressibility": JpegCompressibility,
    "jpeg_incompressibility": JpegIncompressibility,
}


def build(config: RewardsConfig) -> RewardSet:
    """The rewards that are set in the configuration, in the order of the registry.

    Raises:
        ConfigError: none is set, or every weight is 0.
    """
    rewards = []
    for name, scorer in SCORERS.items():
        section = getattr(config, name)
        if section is not None:
            workers = getattr(section, "workers", 1)
            rewards.append(Reward(scorer(section), section.weight, workers))
    return RewardSet(rewards, deadline_seconds=config.deadline)
