"""Learning from captioned pictures beside the rewards (train.sft).

Which pictures an update has, and all that is drawn for them, follows from the run's seed, the step
and the update, so a resumed run needs no state. Micro-batches never depend on the world size.

Deviations from the published trainer: pictures are met evenly and not drawn with replacement by
each rank; and every update of a step has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from atelier.algorithms.supervised import loss_shares
from atelier.background import done_ahead
from atelier.config.schema import RunConfig
from atelier.config.sft_rules import picture_micro_batch
from atelier.data.captioned import picture_indices
from atelier.data.keys import key, uniform
from atelier.data.prompts import PromptSet
from atelier.policies.base import Captioned, LearnsFromPictures
from atelier.training.distributed import World
from atelier.training.engines import Engine
from atelier.training.measures import WeightedMeans

Batches = Sequence[Sequence[Captioned]]


@dataclass(frozen=True)
class Supervision:
    """The captioned pictures of a run, and the policy that learns from them."""

    config: RunConfig
    table: PromptSet
    policy: LearnsFromPictures
    world: World

    def batches(self, step: int, update: int) -> Batches:
        """This rank's micro-batches of a step's update (counted from 0), none in a step without.

        Raises:
            PlanError: there are fewer pictures than an update has.
        """
        train = self.config.train
        if not train.sft.has(step):
            return []
        updates_of_steps_before = (step // train.sft.every - 1) * train.updates_a_step
        drawn = picture_indices(
            self.table,
            self.config.data.sft,
            updates_of_steps_before + update,
            train.sft.pictures_per_update,
            train.seed,
        )
        pictures = [self._captioned(index, step, update, at) for at, index in enumerate(drawn)]
        size = picture_micro_batch(self.config)
        pieces = [pictures[start : start + size] for start in range(0, len(pictures), size)]
        return pieces[self.world.rank :: self.world.size]

    def policy_share(self, batches: Batches) -> float:
        """By what the loss of the rewards is multiplied beside these."""
        return loss_shares(self.config.train.sft)[0] if batches else 1.0

    def read_ahead(self, batches: Batches) -> AbstractContextManager[Iterator[np.ndarray]]:
        """Inside, the pictures of these micro-batches are read beside what else is computed, two
        micro-batches ahead at most; one by one, in their order."""
        pictures = (one for batch in batches for one in batch)
        most = 2 * picture_micro_batch(self.config)
        return done_ahead("pictures", self.policy.pixels, pictures, most)

    def learn(
        self,
        engine: Engine,
        batches: Batches,
        pixels: Iterator[np.ndarray],
        means: WeightedMeans,
    ) -> None:
        """Accumulate gradients of these micro-batches, the last calls before the optimizer's step.

        Args:
            pixels: of their pictures, as `read_ahead` gives them.
            means: gets their loss as loss/sft.

        Raises:
            DataError: a picture is not there any more, or damaged.
        """
        share = loss_shares(self.config.train.sft)[1]
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with engine.accumulate(last):
                shown = np.stack([next(pixels) for _ in batch])
                losses = self.policy.picture_losses(engine.module, batch, shown)
                weight = losses.new_full(losses.shape, 1 / self._pictures)
                engine.backward(share * (losses * weight).sum(), last)
            means.add({"loss/sft": losses.detach()}, weight)

    @property
    def _pictures(self) -> int:
        return self.config.train.sft.pictures_per_update

    def _captioned(self, index: int, step: int, update: int, place: int) -> Captioned:
        """A picture of an update; some without caption, so that guidance goes on working."""
        train, prompt = self.config.train, self.table[index]
        own = key("sft", train.seed, step, update, place)
        dropped = uniform("caption", own) < train.sft.caption_dropout
        return Captioned(prompt, "" if dropped else prompt.text, own)
