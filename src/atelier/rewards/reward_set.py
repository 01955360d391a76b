"""The rewards of a run together: scored in the background, collected in order, summed by weight.

Every reward has its own threads, so a slow or hung one delays no other. onnxruntime and libjpeg
release the GIL: scores are made while the next images are sampled. A remote scorer is one more
`Scorer` whose `score` waits for an answer.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from atelier.errors import AtelierError, ConfigError
from atelier.legible import legible_error, legible_traceback
from atelier.rewards.asking_again import completed, missing_for_now
from atelier.rewards.base import Closeable, Missing, Resting, ScoreBatch, Scorer, Scores
from atelier.rewards.checks import checked, may_be_had_later, require_golden
from atelier.rewards.mixes import mix_of, require_mixes, weight_for
from atelier.rewards.score_table import NOT_ASKED, ScoreTable, spread, tabulate
from atelier.rewards.threads import Outcome, ScoringThreads

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reward:
    """A scorer, its weight in the sum (0 only logs) and how many threads run it."""

    scorer: Scorer
    weight: float = 1.0
    workers: int = 1


@dataclass(frozen=True)
class Asked:
    """What one reward is asked about a batch.

    Attributes:
        batch: the images that it scores.
        places: where they are in the whole batch; the others' data sets do not name the reward.
        weights: of each image in the whole batch; 0 where it is not asked.
    """

    batch: ScoreBatch
    places: Sequence[int]
    weights: Sequence[float]


@dataclass
class Submission:
    """A batch on its way.

    Attributes:
        asked: what each reward is asked about it.
        futures: of each reward whose scores were not collected yet.
        scores: of each reward, what was collected.
        seconds: of each reward that has scored it, from the submission to the scores.
    """

    batch: ScoreBatch
    asked: dict[str, Asked]
    submitted: float = field(default_factory=time.monotonic)
    futures: dict[str, Future[Outcome]] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def missing_for_now(self) -> int:
        """Scores that were collected as missing, and may be had later."""
        return sum(missing_for_now(scores) for scores in self.scores.values())


class RewardSet:
    """Weighted rewards. A context manager: leaving it ends the threads.

    Args:
        rewards: with distinct scorer names.
        deadline_seconds: how long `collect` and `preflight` wait unless told otherwise; may be inf.
        by_dataset: whether the mixes in the images' metadata count (mixes.py), or every reward
            scores every image.

    Raises:
        ConfigError: no reward, all weights 0, or a weight that is not finite.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        deadline_seconds: float = 600.0,
        by_dataset: bool = False,
    ) -> None:
        self.rewards = {reward.scorer.name: reward for reward in rewards}
        self._by_dataset = by_dataset
        self.deadline_seconds = deadline_seconds
        if len(self.rewards) < len(rewards):
            raise ConfigError("rewards: two rewards have the same name")
        if not all(math.isfinite(reward.weight) for reward in rewards):
            raise ConfigError("rewards: every weight must be a finite number")
        if not any(reward.weight for reward in rewards):
            raise ConfigError("rewards: set at least one reward with a weight other than 0")
        self._threads = {
            name: ScoringThreads(name, reward.workers) for name, reward in self.rewards.items()
        }

    @property
    def weights(self) -> dict[str, float]:
        return {name: reward.weight for name, reward in self.rewards.items()}

    def submit(self, batch: ScoreBatch) -> Submission:
        """Start scoring and return at once. A scorer sees this batch, or those images of it whose
        data sets name it."""
        mixes = [mix_of(one, self.rewards) if self._by_dataset else None for one in batch.metadata]
        item = Submission(batch, {name: self._ask(name, batch, mixes) for name in self.rewards})
        for name, asked in item.asked.items():
            if asked.places or not len(batch):
                self._start(name, item)
        return item

    def require_mixes(self, metadata: Iterable[Mapping[str, Any]]) -> None:
        """The mixes of the prompts that will be scored are of these rewards.

        Raises:
            ConfigError: one names a reward that is not set, or none that counts.
        """
        if self._by_dataset:
            require_mixes(metadata, self.rewards)

    def collect(
        self, submissions: Sequence[Submission], deadline_seconds: float | None = None
    ) -> ScoreTable:
        """Wait for scores, in the order of `submissions` whatever their latency.

        Args:
            deadline_seconds: counted from this call, for all submissions together. A score that is
                not there by then is missing, like one whose scorer raised or was not finite.
        """
        end = time.monotonic() + (
            self.deadline_seconds if deadline_seconds is None else deadline_seconds
        )
        for name in self.rewards:
            for item in submissions:
                self._take(name, item, end)
        scores = {name: [item.scores[name] for item in submissions] for name in self.rewards}
        weights = {
            name: [one for item in submissions for one in item.asked[name].weights]
            for name in self.rewards
        }
        return tabulate(scores, weights)

    def ask_again(self, submissions: Sequence[Submission]) -> None:
        """Start scoring what was collected as missing and may be had later; `collect` them again
        for all scores together. Those that are there stand."""
        for item in submissions:
            for name, scores in item.scores.items():
                if missing_for_now(scores):
                    self._start(name, item)

    def preflight(self) -> dict[str, dict[str, Any]]:
        """Score every reward's golden sample before anything depends on it.

        Returns:
            For each reward: version, direction, expected, scores, seconds (until they were there).

        Raises:
            Stopped: a scorer gave no score; the run can start once it does.
            ConfigError: a score is outside the tolerance: this is not the reward that it claims;
                or the scorer itself says that it can never score as it is configured.
        """
        started = time.monotonic()
        end = started + self.deadline_seconds
        goldens = {name: _golden(name, one.scorer) for name, one in self.rewards.items()}
        futures = {
            name: self._start(name, Submission(batch, {name: _all_of(batch)}))
            for name, (batch, _, _) in goldens.items()
        }
        report = {}
        for name, (batch, expected, tolerance) in goldens.items():
            scores = self._wait(name, futures[name], len(batch), end)
            if isinstance(error := _error(futures[name]), ConfigError):
                raise error
            require_golden(name, scores.values, expected, tolerance)
            scorer = self.rewards[name].scorer
            report[name] = {
                "version": scorer.version,
                "direction": scorer.direction,
                "expected": list(expected),
                "scores": list(scores.values),
                "seconds": time.monotonic() - started,
            }
        return report

    def rest(self, is_main: bool) -> None:
        """Every rank has collected its scores: servers on the trainer's GPUs may sleep.

        Args:
            is_main: whether this is the rank that tells them.
        """
        for reward in self.rewards.values():
            if isinstance(reward.scorer, Resting):
                reward.scorer.rest(is_main)

    def close(self) -> None:
        """End the threads. One that hangs is a daemon and ends with the process."""
        for threads in self._threads.values():
            threads.drop_queue()
        for reward in self.rewards.values():
            if isinstance(reward.scorer, Closeable):
                reward.scorer.close()  # what is being scored ends soon
        for threads in self._threads.values():
            threads.close()

    def __enter__(self) -> RewardSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, name: str, item: Submission) -> Future[Outcome]:
        scorer, batch = self.rewards[name].scorer, item.asked[name].batch

        def score() -> Scores:
            scores = checked(scorer.score(batch), len(batch))
            item.seconds[name] = time.monotonic() - item.submitted
            return scores

        future = self._threads[name].submit(score)
        item.futures[name] = future
        return future

    def _take(self, name: str, item: Submission, end: float) -> None:
        """Collect what one reward says of a batch, if it was not collected yet: NOT_ASKED where it
        was not asked."""
        count, places = len(item.batch), item.asked[name].places
        future = item.futures.pop(name, None)
        if future is None:
            item.scores.setdefault(name, Scores(name, [NOT_ASKED] * count))
            return
        found = self._wait(name, future, len(places), end)
        if len(places) < count:
            found = spread(found, places, count)
        earlier = item.scores.get(name)
        item.scores[name] = found if earlier is None else completed(earlier, found)

    def _ask(
        self, name: str, batch: ScoreBatch, mixes: Sequence[Mapping[str, float] | None]
    ) -> Asked:
        weights = [weight_for(name, self.rewards[name].weight, mix) for mix in mixes]
        places = [place for place, weight in enumerate(weights) if weight is not None]
        mine = batch if len(places) == len(batch) else batch.at(places)
        return Asked(mine, places, [weight or 0.0 for weight in weights])

    def _wait(self, name: str, future: Future[Outcome], count: int, end: float) -> Scores:
        """The scores of one batch; all missing, with the reason, if there are none."""
        left = max(0.0, end - time.monotonic())
        wait([future], timeout=min(left, threading.TIMEOUT_MAX))
        if not future.done():
            self._threads[name].give_up(future)
            return _missing(name, count, "no score before the deadline", retryable=True)
        if future.cancelled():
            return _missing(name, count, "the rewards were closed")
        error = _error(future)
        if error is not None:
            reason = f"the scorer failed: {legible_error(error)}"
            return _missing(name, count, reason, error, retryable=may_be_had_later(error))
        scores: Scores = future.result().value
        return scores


def _golden(name: str, scorer: Scorer) -> tuple[ScoreBatch, Sequence[float], float]:
    """A scorer's golden sample. It may be a user's code, so it may do anything.

    Raises:
        ConfigError: there is none, or not one score an image.
    """
    try:
        batch, expected, tolerance = scorer.golden()
        fits = len(batch) == len(expected)
    except AtelierError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"rewards.{name}: its golden sample cannot be made: {why}") from error
    if not fits:
        raise ConfigError(
            f"rewards.{name}: its golden sample has {len(batch)} images and {len(expected)} scores"
        )
    return batch, expected, tolerance


def _all_of(batch: ScoreBatch) -> Asked:
    return Asked(batch, range(len(batch)), [1.0] * len(batch))


def _error(future: Future[Outcome]) -> BaseException | None:
    """What the scorer raised; None while it runs, and where it was not run."""
    return future.result().error if future.done() and not future.cancelled() else None


def _missing(
    name: str,
    count: int,
    reason: str,
    error: BaseException | None = None,
    retryable: bool = False,
) -> Scores:
    where = f"\n{legible_traceback(error)}" if error is not None else ""
    logger.error("reward %s: %d images without a score: %s%s", name, count, reason, where)
    return Scores(name, [Missing(reason, retryable)] * count)
