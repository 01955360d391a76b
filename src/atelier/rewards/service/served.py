"""One reward of a service: its threads, its golden sample, its scores as they go over the wire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from atelier.errors import AtelierError, ConfigError
from atelier.legible import legible, legible_error, legible_traceback
from atelier.rewards.base import Closeable, Missing, Scorer
from atelier.rewards.checks import checked, may_be_had_later, require_golden
from atelier.rewards.registry import batches_at_a_time, make_scorers
from atelier.rewards.service.bodies import Received
from atelier.rewards.service.details import plain_detail
from atelier.rewards.service.pictures import PictureError, PixelBounds
from atelier.rewards.service.protocol import (
    Error,
    Identity,
    Result,
    RewardAnswer,
    RewardState,
)
from atelier.rewards.service.settings import ServiceSettings
from atelier.rewards.threads import ScoringThreads

logger = logging.getLogger(__name__)

GOLDEN_RETRY_SECONDS = 5.0


class ServedReward:
    """A scorer behind the service.

    Args:
        workers: threads, hence batches scored at a time.
        config_digest: of the configuration that shapes the scores.
    """

    def __init__(self, scorer: Scorer, workers: int, config_digest: str) -> None:
        self.scorer = scorer
        self.state = RewardState(state="loading")
        self._config_digest = config_digest
        self._threads = ScoringThreads(scorer.name, workers)

    @cached_property
    def identity(self) -> Identity:
        """Code, configuration and weights. Reads the weights, once.

        Raises:
            ConfigError: they are not there.
        """
        files = self.scorer.weights()
        digest = sha256()
        for path in files:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        weights = digest.hexdigest() if files else None
        return Identity(version=self.scorer.version, config=self._config_digest, weights=weights)

    async def prove(self) -> None:
        """Score the golden sample until it is right, or can never be."""
        while self.state.state != "ready":
            outcome = await asyncio.wrap_future(self._threads.submit(self._golden))
            if outcome.error is None:
                self.state = RewardState(state="ready")
                return
            self._failed(outcome.error)
            if isinstance(outcome.error, ConfigError):
                return
            await asyncio.sleep(GOLDEN_RETRY_SECONDS)  # whatever it raised: it may answer later

    async def score(self, received: Received, bounds: PixelBounds, timeout: float) -> RewardAnswer:
        """Score a batch in a thread; the wait for the thread counts.

        Raises:
            PictureError: a picture is malformed or too large.
        """
        future = self._threads.submit(lambda: self._results(received, bounds))
        try:
            async with asyncio.timeout(timeout):
                outcome = await asyncio.wrap_future(future)
        except TimeoutError:  # our own: the scorer's comes as an outcome
            self._threads.give_up(future)
            text = f"no score within {timeout:.3g} s"
            return self._no_answer(
                received.count, Error(type="timeout", message=text, retryable=True)
            )
        if isinstance(outcome.error, PictureError):
            raise outcome.error
        if outcome.error is not None:
            why = legible_traceback(outcome.error)
            logger.error("reward %s: the scorer failed\n%s", self.scorer.name, why)
            return self._no_answer(received.count, _scorer_failed(outcome.error))
        return RewardAnswer(identity=self.identity, results=outcome.value)

    def close(self) -> None:
        if isinstance(self.scorer, Closeable):
            self.scorer.close()
        self._threads.close(patience_seconds=1.0)

    def _results(self, received: Received, bounds: PixelBounds) -> list[Result]:
        """Runs in the thread that scores, all of it: pictures wait as PNG and few are open at a
        time, and what a scorer returns may be as wrong as what it does."""
        scores = checked(self.scorer.score(received.decoded(bounds)), received.count)
        details = scores.details or [{}] * received.count
        return [_result(one, seen) for one, seen in zip(scores.values, details, strict=True)]

    def _golden(self) -> None:
        batch, expected, tolerance = self.scorer.golden()
        scores = checked(self.scorer.score(batch), len(batch))
        require_golden(self.scorer.name, scores.values, expected, tolerance)
        _ = self.identity  # read here, in a thread, and not by the first request

    def _failed(self, error: BaseException) -> None:
        known = isinstance(error, AtelierError)
        reason = legible(str(error)) if known else legible_error(error)
        self.state = RewardState(
            state="failed" if isinstance(error, ConfigError) else "loading", reason=reason
        )
        logger.error("reward %s: the golden sample: %s", self.scorer.name, reason)

    def _no_answer(self, count: int, error: Error) -> RewardAnswer:
        return RewardAnswer(identity=self.identity, results=[Result(error=error)] * count)


def build(settings: ServiceSettings, usage: Path | None = None) -> dict[str, ServedReward]:
    """Every reward that is set, scored by this process whatever its placement says.

    Args:
        usage: the file in which it is counted what judges are asked.

    Raises:
        ConfigError: none is set.
    """
    sections = settings.rewards.sections()
    if not sections:
        raise ConfigError("rewards: none is set, so there is nothing to serve")
    made = make_scorers(settings.rewards, settings.judges, usage=usage)
    return {
        name: ServedReward(scorer, batches_at_a_time(sections[name]), digest)
        for name, (scorer, digest) in made.items()
    }


def _scorer_failed(error: BaseException) -> Error:
    text, later = legible_error(error), may_be_had_later(error)
    return Error(type="scorer_failed", message=text, retryable=later)


def _result(value: float | Missing, detail: Mapping[str, Any]) -> Result:
    seen = plain_detail(detail)
    if isinstance(value, Missing):
        error = Error(type="no_score", message=value.reason, retryable=value.retryable)
        return Result(detail=seen, error=error)
    return Result(score=value, detail=seen)
