"""The judge that a run's suite asks, made reachable for the stage that scores held-out images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atelier.config.schema import RunConfig
from atelier.config.sections.completion import CompletionConfig
from atelier.config.sections.rewards import RewardsConfig
from atelier.evaluation.judging import SuiteJudge, suite_judge
from atelier.rewards.registry import reachable_judges
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE
from atelier.stages.servers.run_servers import RunServers, judge_urls
from atelier.tracking.run_directory import RunDirectory


@contextmanager
def judge_of_stage(
    run: RunDirectory, config: RunConfig, folder: Path
) -> Iterator[SuiteJudge | None]:
    """The judge of a stage that has no servers of its own: a managed one is started for it.

    Args:
        folder: the stage's, for the server's log, the judge's answers and how much it was asked.

    Raises:
        ConfigError, Stopped: the server cannot be had, see `RunServers`.
    """
    name = config.evaluation.judge
    own = {} if name is None else {name: config.judges[name]}
    rollout = config.rollout.model_copy(update={"completion": CompletionConfig()})
    alone = config.model_copy(
        update={"rewards": RewardsConfig(), "judges": own, "rollout": rollout}
    )
    with (
        RunServers(run, alone, folder) as servers,
        judge_beside(config, servers, folder) as judge,
    ):
        yield judge


@contextmanager
def judge_beside(
    config: RunConfig, servers: RunServers, folder: Path
) -> Iterator[SuiteJudge | None]:
    """The judge of a stage whose servers are running.

    Args:
        folder: for its answers and how much it was asked, see `suite_judge`.
    """
    managed = {name: judge_urls(urls) for name, urls in servers.urls.items()}
    asked = [] if config.evaluation.judge is None else [config.evaluation.judge]
    with (
        _environment(servers.environment),
        suite_judge(config, reachable_judges(config.judges, managed, asked), folder) as judge,
    ):
        yield judge


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """The token of the servers, which clients read from the environment."""
    token = variables.get(MANAGED_TOKEN_VARIABLE)
    if token is None:
        yield
        return
    before = os.environ.get(MANAGED_TOKEN_VARIABLE)
    os.environ[MANAGED_TOKEN_VARIABLE] = token
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(MANAGED_TOKEN_VARIABLE, None)
        else:
            os.environ[MANAGED_TOKEN_VARIABLE] = before
