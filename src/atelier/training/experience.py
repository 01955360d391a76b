"""From a step number to images with scores: what a policy update learns from.

Every draw is keyed by the run's seed, the step and the global sample id, so nothing here has random
state. Scores are made while images are still sampled; until they are collected a batch is in
flight, and other work may be done meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from atelier.algorithms.advantages import flat_groups
from atelier.algorithms.comparison import Comparison
from atelier.config.schema import RunConfig
from atelier.config.whole_groups import images_together
from atelier.data.prompts import Prompt
from atelier.errors import Stopped
from atelier.policies.base import DrawsAhead, Policy, Rollout
from atelier.rewards.asking_again import pause_seconds
from atelier.rewards.base import ScoreBatch
from atelier.rewards.images import pil_images
from atelier.rewards.reward_set import RewardSet, Submission
from atelier.rewards.score_table import ScoreTable
from atelier.training.batches import MicroBatch, drawn_mix, micro_batches_by_update, step_samples
from atelier.training.distributed import World
from atelier.training.drawings import Drawn, drawn_images, step_segments
from atelier.training.measures import Stopwatch, latencies
from atelier.training.scores import StepScores, gather_scores
from atelier.training.weight_sync import Sync, nothing_to_bring

logger = logging.getLogger(__name__)

Updates = list[list[Rollout]]
"""This rank's micro-batches, one list an optimizer update."""


@dataclass(frozen=True)
class Said:
    """What is said of an image: by each reward what its scorer saw; why a score is missing."""

    details: Mapping[str, Mapping[str, Any]]
    reason: str | None


@dataclass
class InFlight:
    """Rolled out and sent to be scored, by the weights that `updates_before` updates had made.

    Attributes:
        unsent: images that wait for the others of their group.
        seconds: reward name -> how long each batch of this rank took to be scored.
        said: sample index -> what is said of the image, once it is scored.
    """

    step: int
    updates_before: int
    rollouts: Updates
    submissions: list[Future[Submission]]
    metrics: dict[str, float]
    unsent: list[Rollout] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    said: dict[int, Said] = field(default_factory=dict)


@dataclass(frozen=True)
class Experience:
    """A step's rollouts of this rank, and the scores of all ranks.

    Attributes:
        scores: of what each sample came to.
        segments: of each segment of a sample, which is rewarded on its own.
        said: sample index -> what is said of an image of this rank; empty where it comes from a
            checkpoint or from another rank, like the rollouts' images.
    """

    step: int
    updates_before: int
    rollouts: Updates
    scores: StepScores
    segments: Sequence[StepScores]
    metrics: dict[str, float]
    said: Mapping[int, Said] = field(default_factory=dict)


@dataclass
class Collector:
    """Makes experience with a policy and the rewards of a run.

    `sampling` is a context in which the policy has the weights that sample, `sync` brings them to
    where the policy's actions are drawn, `sending` waits for images in the order they are made in,
    and gives them to the rewards, while the next ones are sampled.
    """

    config: RunConfig
    policy: Policy
    rewards: RewardSet
    world: World
    prompts: Sequence[Prompt]
    sampling: Callable[[], AbstractContextManager[None]] = nullcontext
    sync: Sync = nothing_to_bring
    sending: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "images"))

    def roll_out(self, step: int, updates_before: int, watch: Stopwatch) -> InFlight:
        """Sample this rank's images of a step; scoring begins with the first micro-batch."""
        samples = step_samples(self.prompts, step, self.config)
        metrics = {**self.policy.begin_step(step), **drawn_mix(samples, step, self.config)}
        updates = micro_batches_by_update(
            samples, step, self.config, self.world.rank, self.world.size
        )
        flight = InFlight(step, updates_before, [], [], metrics)
        with watch("rollout"), self.sampling():
            metrics |= self.sync(updates_before)
            if isinstance(self.policy, DrawsAhead):
                self.policy.expect_rollouts([batch for update in updates for batch in update])
            for update in updates:
                flight.rollouts.append([self._roll_out(batch, flight) for batch in update])
        return flight

    def _roll_out(self, batch: MicroBatch, flight: InFlight) -> Rollout:
        rollout = self.policy.rollout(self.policy.module, batch)
        flight.unsent.append(rollout)
        if sum(len(one.samples) for one in flight.unsent) == images_together(self.config):
            flight.submissions.append(self.sending.submit(self._send, flight.unsent))
            flight.unsent = []
        return rollout

    def _send(self, rollouts: Sequence[Rollout]) -> Submission:
        return self.rewards.submit(ScoreBatch.joined([score_batch(one) for one in rollouts]))

    def close(self) -> None:
        """End the thread that sends; images that wait are not sent any more."""
        self.sending.shutdown(cancel_futures=True)

    def collect(self, flight: InFlight, watch: Stopwatch) -> Experience:
        """Wait for the scores. Collective.

        Raises:
            Stopped: too few images have one, or one is no number; on all ranks.
        """
        scores = self._scores(flight, flight.rollouts, watch)
        for round in range(1, self.config.train.resample_rounds + 1):
            flat = self._flat_groups(scores)
            if len(flat) == 0:
                break
            flight.metrics["resample/groups"] = flight.metrics.get("resample/groups", 0) + len(flat)
            again = self._roll_out_again(flight, flat, round, watch)
            scores = scores.replaced_by(self._scores(flight, again, watch))
        self.rewards.rest(self.world.is_main)  # gathered: no rank waits for a score any more
        self._require(flight.step, scores)
        flight.metrics |= latencies(flight.seconds, self.world)
        rollouts = [one for update in flight.rollouts for one in update]
        parts = step_segments(scores, rollouts, self.config, self.world)
        flight.metrics |= parts.metrics
        made = flight.step, flight.updates_before, flight.rollouts
        return Experience(*made, parts.final, parts.segments, flight.metrics, flight.said)

    def _table(self, step: int, submissions: Sequence[Submission]) -> ScoreTable:
        """This rank's scores. What is missing for now is asked for again. Collective, so that no
        rank waits for another much longer than a deadline."""
        settings = self.config.rewards
        table = self.rewards.collect(submissions, settings.deadline)
        for round in range(settings.replay):
            lacking = sum(self.world.gather(sum(one.missing_for_now for one in submissions)))
            if not lacking:
                break
            pause = pause_seconds(round, settings.deadline)
            why = next(filter(None, table.reasons), "on another rank")
            again = f"asked for again in {pause:g} s, time {round + 1} of {settings.replay}"
            logger.warning(
                "step %d: %d scores are missing for now (%s); %s", step, lacking, why, again
            )
            time.sleep(pause)
            self.rewards.ask_again(submissions)
            table = self.rewards.collect(submissions, settings.deadline)
        return table

    def _flat_groups(self, scores: StepScores) -> Tensor:
        comparison = Comparison.of(self.config)
        valid = comparison.comparable(scores)
        return flat_groups(comparison.compared(scores), scores.group_ids, valid)

    def _scores(self, flight: InFlight, rollouts: Updates, watch: Stopwatch) -> StepScores:
        sent, flight.submissions = flight.submissions, []
        with watch("score"):
            with self.world.failing_together():
                submissions = [one.result() for one in sent]
            table = self._table(flight.step, submissions)
            for name in self.rewards.weights:
                known = [one.seconds[name] for one in submissions if name in one.seconds]
                flight.seconds.setdefault(name, []).extend(known)
            images = [one for update in rollouts for each in update for one in drawn_images(each)]
            samples = [one.sample for one in images]
            flight.said |= _said(images, table)
            return gather_scores(self.world, [one.place for one in images], samples, table)

    def _roll_out_again(
        self, flight: InFlight, groups: Tensor, round: int, watch: Stopwatch
    ) -> Updates:
        """Other prompts in the place of some groups; the plan saw to it that a micro-batch is of
        one group. Returns the new rollouts alone."""
        samples = step_samples(self.prompts, flight.step, self.config, round)
        chosen, again = set(groups.tolist()), []
        with watch("rollout"), self.sampling():
            for update in flight.rollouts:
                for place, rollout in enumerate(update):
                    if rollout.samples[0].pool in chosen:
                        batch = [samples[one.index] for one in rollout.samples]
                        update[place] = self._roll_out(batch, flight)
                        again.append(update[place])
        return [again]

    def _require(self, step: int, scores: StepScores) -> None:
        share = float(scores.valid.float().mean())
        if share < self.config.rewards.min_valid_share:
            raise Stopped(
                f"step {step}: only {share:.0%} of the images have a score, below "
                f"rewards.min_valid_share={self.config.rewards.min_valid_share}; first reason: "
                f"{scores.first_reason}. Mend the reward and resume: no weight was changed by "
                "this step"
            )


def _said(images: Sequence[Drawn], table: ScoreTable) -> dict[int, Said]:
    return {
        one.sample.index: Said({name: rows[row] for name, rows in table.details.items()}, reason)
        for row, (one, reason) in enumerate(zip(images, table.reasons, strict=True))
        if one.is_final
    }


def score_batch(rollout: Rollout) -> ScoreBatch:
    """What the rewards are shown of a rollout."""
    drawn = list(drawn_images(rollout))
    return ScoreBatch(
        images=pil_images(np.stack([one.image for one in drawn])),
        prompts=[one.sample.prompt.text for one in drawn],
        metadata=_metadata(rollout, drawn),
        group_ids=[one.sample.group_id for one in drawn],
        source_images=rollout.sources,
    )


def _metadata(rollout: Rollout, drawn: Sequence[Drawn]) -> Sequence[Mapping[str, Any]]:
    """Of the images' prompts, with what was written for each; a policy that writes makes one."""
    found = [one.sample.prompt.metadata for one in drawn]
    if rollout.completions is None:
        return found
    pairs = zip(found, rollout.completions, strict=True)
    return [{**metadata, "completion": words} for metadata, words in pairs]
