"""Bringing the trained weights to the servers that draw, where the policy does not draw itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from atelier.config.access_tokens import token_of
from atelier.config.placement import SAMPLER
from atelier.config.schema import RunConfig
from atelier.config.sections.sampler import SamplerConfig
from atelier.errors import AtelierError, ConfigError
from atelier.policies.base import Policy
from atelier.policies.registry import served_sampler
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE
from atelier.rewards.service_file import read_urls
from atelier.tracking.run_directory import RunDirectory
from atelier.training.distributed import World
from atelier.training.engines import Engine

if TYPE_CHECKING:
    from atelier.policies.qwen.served.sampler import ServedSampler, Version

Sync = Callable[[int], Mapping[str, float]]
"""The run's updates so far -> metrics. Collective; called before each rollout."""


def nothing_to_bring(updates: int) -> Mapping[str, float]:
    """The policy draws itself."""
    return {}


@contextmanager
def weight_sync(
    config: RunConfig, run: RunDirectory, policy: Policy, engine: Engine, world: World
) -> Iterator[Sync]:
    """What brings the weights that sample to the run's servers, if it has any.

    Raises:
        ConfigError: there are to be some, and this trainer knows of none.
    """
    if config.sampler is None:
        yield nothing_to_bring
        return
    urls, token = _reachable(config.sampler, run)
    folder = run.sampler / "weights"
    with _of_this_life(folder, world):
        sampler = served_sampler(policy, config.sampler, urls, token, world.rank, folder)
        with closing(sampler):
            yield WeightSync(sampler, policy, engine, world)


class WeightSync:
    """Brings weights that have changed; see Sync.

    One rank asks, and tells the others how it went: no rank waits in a collective for one that has
    failed.
    """

    def __init__(
        self, sampler: ServedSampler, policy: Policy, engine: Engine, world: World
    ) -> None:
        self._sampler = sampler
        self._policy = policy
        self._engine = engine
        self._world = world
        self._updates: int | None = None  # that the weights have seen which were brought

    def __call__(self, updates: int) -> Mapping[str, float]:
        if updates == self._updates:
            return {}
        weights = self._engine.weights(wanted=self._world.is_main)
        expected = self._sampler.expected(self._policy.module)
        outcome: Any = self._bring(weights, expected) if self._world.is_main else None
        outcome = self._world.gather(outcome)[0]
        if isinstance(outcome, AtelierError):
            raise outcome
        version, metrics = outcome
        self._sampler.follow(version)
        self._updates = updates
        return metrics

    def _bring(
        self, weights: Mapping[str, Tensor], expected: Tensor
    ) -> tuple[Version, dict[str, float]] | AtelierError:
        try:
            return self._sampler.bring(weights, expected)
        except AtelierError as error:
            return error


def _reachable(config: SamplerConfig, run: RunDirectory) -> tuple[list[str], str | None]:
    """URLs of the servers, and the token that they ask for."""
    if config.placement == "remote":
        return config.urls, token_of(config.token_env, SAMPLER)
    urls, token = read_urls(run.train).get(SAMPLER), os.environ.get(MANAGED_TOKEN_VARIABLE)
    if not urls or token is None:
        raise ConfigError(
            f"{SAMPLER}.placement: the train stage starts a managed server, and this trainer was "
            "started without it: use `atelier stage train` or `atelier run`, or set "
            f"{SAMPLER}.placement to remote"
        )
    return urls, token


@contextmanager
def _of_this_life(folder: Path, world: World) -> Iterator[None]:
    """A folder that is empty first, and gone afterwards."""
    if not world.is_main:
        yield
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
