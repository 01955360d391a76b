"""What others serve for a run is there, before it makes its first image.

Later an outage is waited for. One that has never answered is more likely a wrong address, or not
started: that is found out before minutes of work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from atelier.config.asked_judges import judges_asked_here
from atelier.config.placement import SAMPLER
from atelier.config.schema import RunConfig
from atelier.errors import Stopped

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
_ONE_LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class _Remote:
    """What is looked for. `not_there`: takes when to give up, on the monotonic clock."""

    key: str
    patience: float
    not_there: Callable[[float], str | None]


def require_answers(config: RunConfig, rewards: bool = True) -> None:
    """Every remote reward, and every remote judge and sampler that this run asks, has answered
    something.

    Args:
        rewards: whether those that training asks are looked for; else the suite's judge alone.

    Raises:
        Stopped: one has not answered for its `first_answer` seconds.
        ConfigError: one answers that is another reward's, or a token is not set.
    """
    with ExitStack() as opened:
        waiting = [*_judges(config, rewards)]
        if rewards:
            waiting += [*_sampler(config), *_rewards(config, opened)]
        begun, said = time.monotonic(), False
        while waiting:
            problems = {one: found for one in waiting if (found := _look(one, begun))}
            now = time.monotonic()
            late = {one: why for one, why in problems.items() if now >= begun + one.patience}
            if late:
                raise Stopped("; ".join(_gave_up(one, why) for one, why in late.items()))
            if problems and not said:
                for one, why in problems.items():
                    logger.warning("%s", _waiting_words(one, why, begun + one.patience - now))
            waiting, said = list(problems), True
            if waiting:
                time.sleep(POLL_SECONDS)


def _look(one: _Remote, begun: float) -> str | None:
    now = time.monotonic()
    left = max(1.0, begun + one.patience - now)
    return one.not_there(now + min(_ONE_LOOK_SECONDS, left))


def _rewards(config: RunConfig, opened: ExitStack) -> Iterator[_Remote]:
    from atelier.rewards.registry import remote_scorers

    sections = config.rewards.by_path()
    if not any(one.placement == "remote" and one.first_answer for one in sections.values()):
        return
    for key, scorer in remote_scorers(config.rewards, config.judges).items():
        opened.enter_context(closing(scorer))
        if sections[key].first_answer:
            yield _Remote(key, sections[key].first_answer, scorer.not_there)


def _judges(config: RunConfig, rewards: bool) -> Iterator[_Remote]:
    """Those that this machine asks: a remote reward's judge is its service's own business."""
    for name in judges_asked_here(config, rewards):
        judge = config.judges[name]
        if judge.placement == "remote" and judge.first_answer:
            key = f"judges.{name}"
            yield _endpoints(key, judge.urls, judge.token_env, judge.first_answer)


def _sampler(config: RunConfig) -> Iterator[_Remote]:
    sampler = config.sampler
    if sampler is None or sampler.placement != "remote":
        return
    for url in sampler.urls if sampler.first_answer else ():  # all of them: a rank asks one
        endpoint = f"{url.rstrip('/')}/v1"
        yield _endpoints(SAMPLER, [endpoint], sampler.token_env, sampler.first_answer)


def _endpoints(key: str, urls: list[str], token_env: str | None, patience: float) -> _Remote:
    from atelier.judge.there import not_there  # the openai package: seconds to import

    return _Remote(key, patience, partial(not_there, urls, token_env, key))


def _waiting_words(one: _Remote, why: str, left: float) -> str:
    since = datetime.now()
    until = since + timedelta(seconds=max(0.0, left))
    return (
        f"{one.key} does not answer: {why}; waited for since {since:%H:%M:%S}, until "
        f"{until:%H:%M:%S}: {_what_to_check(one.key)}"
    )


def _gave_up(one: _Remote, why: str) -> str:
    return (
        f"{one.key} has not answered within {one.patience:g} s ({one.key}.first_answer): {why}: "
        f"{_what_to_check(one.key)} Then resume the run"
    )


def _what_to_check(key: str) -> str:
    return f"is it started, and is {key}.urls right?"
