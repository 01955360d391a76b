"""Images reach the rewards when they are there, and nobody who samples waits for them."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from atelier.config.resolve import resolve
from atelier.data.prompts import Prompt
from atelier.errors import Stopped
from atelier.policies.grey_levels import GreyLevels, as_grey_levels
from atelier.rewards.base import ScoreBatch, Scores
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.training.distributed import World
from atelier.training.experience import Collector
from atelier.training.measures import Stopwatch
from tests.support.runs import SETTINGS
from tests.support.toy_token_policy import ToyTokenPolicy

ALONE = World(0, 1, torch.device("cpu"))
PROMPTS = [Prompt(i, 0, f"word {i}") for i in range(4)]


class Later(GreyLevels):
    """Images that are there when somebody says so."""

    def __init__(self, images: np.ndarray, number: int, log: list[str]) -> None:
        self.there = threading.Event()
        self._images, self._number, self._log = images, number, log

    def wait(self) -> np.ndarray:
        assert self.there.wait(60)
        return self._images


class Policy(ToyTokenPolicy):
    """Its images come late."""

    def __init__(self, log: list[str], broken: bool = False) -> None:
        super().__init__(3)
        self.log, self.late, self.broken = log, [], broken

    def rollout(self, module, samples):
        rollout = super().rollout(module, samples)
        self.log.append(f"sampled {len(self.late)}")
        later = Later(rollout.images, len(self.late), self.log)
        self.late.append(later)
        if self.broken:
            later = GreyLevels(torch.full((len(samples), 8, 8, 3), float("nan")), "mend it")
        return replace(rollout, made=later)


class Bright:
    """Mean grey level."""

    name, version, direction = "bright", "1", "higher"

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def golden(self):
        raise NotImplementedError

    def score(self, batch: ScoreBatch) -> Scores:
        self.log.append("scored")
        return Scores(self.name, [float(np.asarray(one).mean()) for one in batch.images])


def collector(policy: Policy, rewards: RewardSet) -> Collector:
    settings = resolve(recipe="tiny/base", overrides=list(SETTINGS))
    return Collector(settings, policy, rewards, ALONE, PROMPTS)


def test_sampling_goes_on_while_images_come() -> None:
    log: list[str] = []
    policy = Policy(log)
    with RewardSet([Reward(Bright(log))]) as rewards:
        made = collector(policy, rewards)
        flight = made.roll_out(1, 0, Stopwatch())
        assert log == [f"sampled {number}" for number in range(4)], "nothing waited"
        for one in reversed(policy.late):  # they are taken in order all the same
            one.there.set()
        experience = made.collect(flight, Stopwatch())
    assert log.count("scored") == 4
    rollouts = [one for update in experience.rollouts for one in update]
    bright = {
        sample.index: float(image.mean())
        for one in rollouts
        for sample, image in zip(one.samples, one.images, strict=True)
    }
    found = dict(
        zip(experience.scores.index.tolist(), experience.scores.total.tolist(), strict=True)
    )
    assert found == pytest.approx(bright)


def test_the_first_images_are_scored_before_the_others_are_there() -> None:
    log: list[str] = []
    policy = Policy(log)
    scored = threading.Event()
    scorer = Bright(log)
    score = scorer.score
    scorer.score = lambda batch: (scored.set(), score(batch))[1]  # type: ignore[method-assign]
    with RewardSet([Reward(scorer)]) as rewards:
        made = collector(policy, rewards)
        flight = made.roll_out(1, 0, Stopwatch())
        policy.late[0].there.set()
        assert scored.wait(60)
        for one in policy.late[1:]:
            one.there.set()
        made.collect(flight, Stopwatch())


def test_images_that_are_no_numbers_stop_the_run_when_scores_are_collected() -> None:
    policy = Policy([], broken=True)
    with RewardSet([Reward(Bright([]))]) as rewards:
        made = collector(policy, rewards)
        flight = made.roll_out(1, 0, Stopwatch())
        with pytest.raises(Stopped, match="NaN or infinite; mend it"):
            made.collect(flight, Stopwatch())


def test_grey_levels_are_the_same_bits_on_their_way() -> None:
    images = torch.randn(2, 5, 4, 3, generator=torch.Generator().manual_seed(1))
    expected = as_grey_levels(images, "").round().to(torch.uint8).numpy()
    found = GreyLevels(images, "").wait()
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected)
