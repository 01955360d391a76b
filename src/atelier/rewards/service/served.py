"""One reward of a service: its threads, its golden sample, its scores as they go over the wire."""

from __future__ import annotations

import asyncio
import logging
import math
import numbers
from concurrent.futures import Future
from functools import cached_property
from hashlib import sha256
from typing import Any

from atelier.errors import AtelierError, ConfigError
from atelier.rewards.base import Closeable, Missing, Scorer, Scores
from atelier.rewards.checks import checked, require_golden
from atelier.rewards.registry import make_scorers
from atelier.rewards.service.bodies import Received
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
            try:
                await asyncio.wrap_future(self._threads.submit(self._golden))
                self.state = RewardState(state="ready")
            except ConfigError as error:
                self._failed(error)
                return
            except Exception as error:  # whatever the scorer raises: it may answer later
                self._failed(error)
                await asyncio.sleep(GOLDEN_RETRY_SECONDS)

    async def score(self, received: Received, bounds: PixelBounds, timeout: float) -> RewardAnswer:
        """Score a batch in a thread; the wait for the thread counts.

        Raises:
            PictureError: a picture is malformed or too large.
        """
        future: Future[Scores] = self._threads.submit(
            # Decoded by the thread that scores: pictures wait as PNG, and few are open at a time.
            lambda: checked(self.scorer.score(received.decoded(bounds)), received.count)
        )
        try:
            scores = await asyncio.wait_for(asyncio.wrap_future(future), timeout)
        except TimeoutError:
            self._threads.give_up(future)
            return self._no_answer(received.count, "timeout", f"no score within {timeout:.3g} s")
        except PictureError:
            raise
        except Exception as error:  # a scorer may raise anything; the client must be told
            logger.exception("reward %s: the scorer failed", self.scorer.name)
            text = f"{type(error).__name__}: {error}"
            return self._no_answer(received.count, "scorer_failed", text)
        details = scores.details or [{}] * received.count
        results = [
            _result(value, detail) for value, detail in zip(scores.values, details, strict=True)
        ]
        return RewardAnswer(identity=self.identity, results=results)

    def close(self) -> None:
        if isinstance(self.scorer, Closeable):
            self.scorer.close()
        self._threads.close(patience_seconds=1.0)

    def _golden(self) -> None:
        batch, expected, tolerance = self.scorer.golden()
        scores = checked(self.scorer.score(batch), len(batch))
        require_golden(self.scorer.name, scores.values, expected, tolerance)
        _ = self.identity  # read here, in a thread, and not by the first request

    def _failed(self, error: Exception) -> None:
        reason = (
            str(error) if isinstance(error, AtelierError) else f"{type(error).__name__}: {error}"
        )
        self.state = RewardState(
            state="failed" if isinstance(error, ConfigError) else "loading", reason=reason
        )
        logger.error("reward %s: the golden sample: %s", self.scorer.name, reason)

    def _no_answer(self, count: int, kind: str, message: str) -> RewardAnswer:
        error = Error(type=kind, message=message, retryable=True)
        return RewardAnswer(identity=self.identity, results=[Result(error=error)] * count)


def build(settings: ServiceSettings) -> dict[str, ServedReward]:
    """Every reward that is set, scored by this process whatever its placement says.

    Raises:
        ConfigError: none is set.
    """
    sections = settings.rewards.sections()
    if not sections:
        raise ConfigError("rewards: none is set, so there is nothing to serve")
    made = make_scorers(settings.rewards, settings.judges)
    return {
        name: ServedReward(scorer, sections[name].workers, digest)
        for name, (scorer, digest) in made.items()
    }


def _result(value: float | Missing, detail: Any) -> Result:
    seen = plain(dict(detail))
    if isinstance(value, Missing):
        error = Error(type="no_score", message=value.reason, retryable=value.retryable)
        return Result(detail=seen, error=error)
    return Result(score=value, detail=seen)


def plain(value: Any) -> Any:
    """A scorer's detail as JSON: numbers of other libraries, and what JSON lacks, as text."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    return str(value)
