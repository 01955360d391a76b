"""A reward whose scores are made by services: one more `Scorer`, for one URL or several.

Whatever a service does, a batch ends with its scores in order, or with Missing and the reason. It
is asked again, with exponential back-off and full jitter, until shortly before the deadline of
whoever waits for it; at once it is missing where it is refused itself, or by every service.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atelier.errors import ConfigError
from atelier.legible import legible, without_secret_json
from atelier.outage import Outage
from atelier.rewards.base import Missing, Score, ScoreBatch, Scorer, Scores
from atelier.rewards.client.endpoints import (
    VERSION_PATH,
    Endpoint,
    Endpoints,
    NoAnswer,
    NotThere,
    ServiceRefuses,
    WrongService,
)
from atelier.rewards.client.outgoing import CannotBeSent, OutgoingBatch
from atelier.rewards.service.protocol import (
    Identity,
    RequestHead,
    Result,
    ScoreAnswer,
    VersionAnswer,
)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_VERSION_SECONDS = 10.0


class RemoteScorer:
    """Scores from services.

    Args:
        scorer: the reward as this process would make it: its name, direction, range and golden
            sample are taken from it, and it never scores.
        urls: services that score it.
        config_digest: `scorer_digest` of its section; services must have the same.
        token: bearer token that the services ask for.
        deadline: seconds whoever waits for a batch will wait.
        timeout: seconds one request may take.
        concurrency: requests at a time, hence connections kept.
        key: where the reward stands in the configuration, for messages.
    """

    def __init__(
        self,
        scorer: Scorer,
        urls: Sequence[str],
        config_digest: str,
        token: str | None = None,
        deadline: float = 600.0,
        timeout: float = 120.0,
        concurrency: int = 2,
        key: str | None = None,
    ) -> None:
        self.name = scorer.name
        self.direction = scorer.direction
        self.value_range = scorer.value_range
        self._scorer = scorer
        self._config_digest = config_digest
        self._token = token
        # A little less, so that the reason is there when the wait ends.
        self._patience = deadline - min(2.0, 0.1 * deadline)
        self._timeout = timeout
        self._endpoints = Endpoints(urls, token, concurrency)
        self._checking = threading.Lock()
        self._checked_once = False
        self._accepted: Identity | None = None  # what all of them must be from then on
        self._closed = threading.Event()
        self._outage = Outage(key or f"rewards.{self.name}")
        self._random = random.Random()  # not the global one, which a run may have seeded

    @property
    def version(self) -> str:
        """What the services say they are."""
        return legible(self._accepted.version, self._token) if self._accepted else "unknown"

    def weights(self) -> Sequence[Path]:
        return ()

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        return self._scorer.golden()

    def score(self, batch: ScoreBatch) -> Scores:
        """Scores of the batch; Missing with the reason where there are none at the deadline.

        Raises:
            ConfigError: a service scores something else than this reward, or refuses to say what
                it scores, and did so from the beginning.
        """
        if not len(batch):
            return Scores(self.name, [])
        end = time.monotonic() + self._patience
        self._check_all_once(end)
        scores: list[Score] = [Missing("not asked", retryable=True)] * len(batch)
        details: list[Mapping[str, Any]] = [{}] * len(batch)
        outgoing = OutgoingBatch(batch)
        refused: set[str] = set()  # by the services with these URLs
        for attempt in self._attempts(end, refused):
            try:
                results = self._ask(outgoing, len(batch), end, refused)
            except CannotBeSent as error:
                retryable = False
                self._note(scores, str(error), retryable, 1, end)
            except NoAnswer as failure:
                retryable = self._may_be_had(failure, refused)
                if retryable and attempt > 1 and time.monotonic() >= end:
                    break  # cut short by the deadline: the attempts before say more of the cause
                self._note(scores, str(failure), retryable, attempt, end)
            else:
                self._outage.answered()
                self._take(scores, details, results)
                retryable = any(isinstance(one, Missing) and one.retryable for one in scores)
            if not retryable:
                break
        return Scores(self.name, scores, details)

    def not_there(self, end: float) -> str | None:
        """Why no service answers at all; None where one does, whatever it says.

        Args:
            end: when to give up, on the monotonic clock.

        Raises:
            ConfigError: one answers that scores something else, or refuses to say what it scores.
        """
        reasons = []
        for endpoint in self._endpoints.all:
            try:
                self._check_first(endpoint, end)
            except NotThere as failure:
                reasons.append(str(failure))
            except NoAnswer:  # it may be loading
                return None
            else:
                return None
        return "; ".join(reasons)

    def close(self) -> None:
        """End every `score` under way, with what it has."""
        self._closed.set()
        self._endpoints.close()

    def _may_be_had(self, failure: NoAnswer, refused: set[str]) -> bool:
        """Whether asking again may help after a failure, which is added to `refused` if it is one.

        Raises:
            ConfigError: no service was right so far, and this one is wrong.
        """
        if isinstance(failure, ServiceRefuses):
            refused.add(failure.url)
            return not self._endpoints.all_in(refused)
        if isinstance(failure, WrongService) and self._accepted is None:
            raise ConfigError(f"rewards.{self.name}: {failure}") from failure
        return failure.retryable

    def _attempts(self, end: float, refused: set[str]) -> Iterator[int]:
        """1, 2, ...: with pauses between them, until there is no time for one more."""
        for attempt in itertools.count(1):
            yield attempt
            longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempt - 1, 16))
            asked = self._endpoints.asked_to_wait(refused)
            if time.monotonic() + asked >= end:
                asked = 0.0  # nobody would be waiting any more: better asked too soon than never
            pause = asked + self._random.uniform(0, longest)
            if time.monotonic() + pause >= end or self._closed.wait(pause):
                return

    def _ask(self, batch: OutgoingBatch, count: int, end: float, refused: set[str]) -> list[Result]:
        """One request to the service that is best to ask.

        Raises:
            NoAnswer: it gave no answer that can be used.
            CannotBeSent: the batch can never be sent.
        """
        end = min(end, time.monotonic() + self._timeout)
        head = RequestHead(
            rewards=[self.name],
            request_id=uuid.uuid4().hex,
            timeout=max(end - time.monotonic(), 0.001),
        )
        with self._endpoints.chosen(refused) as endpoint:
            if endpoint.identity is None:
                self._check(endpoint, end)
            answer = endpoint.post("/score", *batch.body(head, endpoint.takes), ScoreAnswer, end)
            return self._require_whole(endpoint, head, count, answer)

    def _require_whole(
        self, endpoint: Endpoint, head: RequestHead, count: int, answer: ScoreAnswer
    ) -> list[Result]:
        """The results, if they are this request's, by the scorer that was checked, and in range."""
        problem = None
        mine = answer.rewards.get(self.name)
        if answer.request_id != head.request_id or mine is None:
            problem = "an answer to another request"
        elif mine.identity != endpoint.identity:
            endpoint.identity = None
            problem = "the service is not the one that was checked any more"
        elif len(mine.results) != count:
            problem = f"{len(mine.results)} scores for {count} images"
        else:
            low, high = self.value_range
            known = [one.score for one in mine.results if one.score is not None]
            outside = [score for score in known if not low <= score <= high]
            if outside:
                problem = f"a score of {outside[0]}, outside [{low}, {high}]"
        if problem is not None or mine is None:
            raise endpoint.failure(NoAnswer, str(problem))
        return mine.results

    def _note(
        self, scores: list[Score], reason: str, retryable: bool, attempt: int, end: float
    ) -> None:
        """Say of every image that has no score why it has none now."""
        text = reason if attempt == 1 else f"{reason} (asked {attempt} times)"
        for index, score in enumerate(scores):
            if isinstance(score, Missing) and score.retryable:
                scores[index] = Missing(text, retryable)
        if retryable:
            self._outage.failed(text, end)

    def _take(
        self, scores: list[Score], details: list[Mapping[str, Any]], results: Sequence[Result]
    ) -> None:
        """Take up an answer. A score that an earlier one gave stands."""
        for index, (score, result) in enumerate(zip(scores, results, strict=True)):
            if not isinstance(score, Missing):
                continue
            details[index] = without_secret_json(result.detail, self._token)
            if result.error is not None:
                text = f"{result.error.type}: {result.error.message}"
                scores[index] = Missing(legible(text, self._token), result.error.retryable)
            elif result.score is not None:
                scores[index] = result.score

    # Which scorer answers ------------------------------------------------------------------------

    def _check_all_once(self, end: float) -> None:
        """Before the first batch, look at every service; a silent one is looked at later.

        Raises:
            ConfigError: one of them scores something else, or refuses to answer.
        """
        with self._checking:
            if self._checked_once:
                return
            soon = min(end, time.monotonic() + _VERSION_SECONDS)
            for endpoint in self._endpoints.all:
                try:
                    self._check_first(endpoint, soon)
                except NoAnswer as failure:
                    self._outage.failed(str(failure), end)
            self._checked_once = True

    def _check_first(self, endpoint: Endpoint, end: float) -> None:
        """Look at a service that nothing is known of.

        Raises:
            ConfigError: it scores something else, or refuses to answer.
            NoAnswer: it gives none, and may give one later.
        """
        try:
            self._check(endpoint, end)
        except NoAnswer as failure:
            if isinstance(failure, WrongService) or not failure.retryable:
                raise ConfigError(f"rewards.{self.name}: {failure}") from failure
            raise

    def _check(self, endpoint: Endpoint, end: float) -> None:
        """Look at what a service scores with.

        Raises:
            WrongService: with something else than this run's configuration or the other services.
        """
        served = endpoint.get(VERSION_PATH, VersionAnswer, end).rewards
        identity = served.get(self.name)
        if identity is None:
            text = f"it serves {', '.join(served) or 'nothing'} and not {self.name}"
            raise endpoint.failure(WrongService, text)
        if identity.config != self._config_digest:
            raise endpoint.failure(
                WrongService,
                f"it scores with configuration {identity.config[:12]} ({identity.version}), this "
                f"run's is {self._config_digest[:12]}: start the service with this run's "
                f"rewards.{self.name}, or change it to the service's",
            )
        if self._accepted is not None and identity != self._accepted:
            raise endpoint.failure(
                WrongService,
                f"it scores with {identity}, and other services, or the same one before, with "
                f"{self._accepted}",
            )
        self._accepted = endpoint.identity = identity
