"""Which rewards exist. A new one: a file with a scorer, a line here, a section in the schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atelier.config.digest import scorer_digest
from atelier.config.rewards import RewardsConfig, RewardSection
from atelier.errors import ConfigError
from atelier.rewards.base import Scorer
from atelier.rewards.jpeg import JpegCompressibility, JpegIncompressibility
from atelier.rewards.ocr import OcrScorer
from atelier.rewards.remote import RemoteScorer
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE, TOKEN_VARIABLE

# Name of the section in `rewards:` -> what makes a scorer of it.
SCORERS: dict[str, Callable[[Any], Scorer]] = {
    "ocr": OcrScorer,
    "jpeg_compressibility": JpegCompressibility,
    "jpeg_incompressibility": JpegIncompressibility,
}


def build(config: RewardsConfig, managed: Mapping[str, Sequence[str]] | None = None) -> RewardSet:
    """The rewards that are set in the configuration, each scored where its placement says.

    Args:
        managed: reward name -> URLs of the services that were started for this run.

    Raises:
        ConfigError: none is set, every weight is 0, or a managed one has no service.
    """
    rewards = []
    for name, section in config.sections().items():
        scorer = SCORERS[name](section)
        threads = section.workers
        if section.placement != "in_process":
            urls, token = _services(name, section, managed or {})
            # One more than they score at a time: the next batch is on its way meanwhile.
            threads = section.workers * len(urls) + 1
            scorer = RemoteScorer(
                scorer,
                urls,
                scorer_digest(name, section),
                token,
                deadline=config.deadline,
                timeout=section.timeout,
                concurrency=threads,
            )
        rewards.append(Reward(scorer, section.weight, threads))
    return RewardSet(rewards, deadline_seconds=config.deadline)


def _services(
    name: str, section: RewardSection, managed: Mapping[str, Sequence[str]]
) -> tuple[Sequence[str], str | None]:
    """URLs of a reward's services, and the token that they ask for."""
    if section.placement == "remote":
        return section.urls, os.environ.get(TOKEN_VARIABLE)
    token = os.environ.get(MANAGED_TOKEN_VARIABLE)
    if not managed.get(name) or token is None:
        raise ConfigError(
            f"rewards.{name}.placement: the train stage starts a managed reward's service, and "
            "this trainer was started without it: use `atelier stage train` or `atelier run`, or "
            f"set rewards.{name}.placement to in_process"
        )
    return managed[name], token
