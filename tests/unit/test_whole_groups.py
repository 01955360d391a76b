"""Rewards that compare the images of a group are given whole groups, on any number of ranks."""

from collections import Counter

import pytest
import torch

from atelier.config.schema import RunConfig
from atelier.config.whole_groups import images_together
from atelier.data.prompts import Prompt
from atelier.rewards import Reward, RewardSet, ScoreBatch, Scores
from atelier.training.batches import micro_batches_by_update, step_samples
from atelier.training.distributed import World
from atelier.training.experience import Collector
from atelier.training.measures import Stopwatch
from tests.support.toy_token_policy import Brightness, ToyTokenPolicy
from tests.unit.test_config_plan import planned, refusal

PROMPTS = [Prompt(i, 0, f"prompt {i}", {}) for i in range(8)]
JUDGED = {"judges": {"j": {"model": "m"}}}
PAIRWISE = {"unified_reward_think": {"judge": "j"}}


def config(group=8, micro=4, prompts=4, updates=1, rewards=None, **train):
    return RunConfig.model_validate(
        {
            "rollout": {"group_size": group, "micro_batch_size": micro},
            "algorithm": {"clip_range": 0.2, "kl": "k3"},
            "rewards": PAIRWISE if rewards is None else rewards,
            **JUDGED,
            "train": {"prompts_per_step": prompts, "updates_per_step": updates, **train},
        }
    )


@pytest.mark.parametrize(("group", "micro", "together"), [(8, 4, 8), (8, 16, 16), (6, 4, 12)])
def test_as_many_micro_batches_stay_together_as_hold_whole_groups(group, micro, together):
    assert images_together(config(group, micro)) == together
    assert images_together(config(group, micro, rewards={})) == micro


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_group_is_of_one_rank_and_one_update(world_size):
    settings = config(group=8, micro=2, prompts=8, updates=2)
    samples = step_samples(PROMPTS, 3, settings)
    seen = []
    for rank in range(world_size):
        for update in micro_batches_by_update(samples, 3, settings, rank, world_size):
            groups = [one.group_id for batch in update for one in batch]
            assert set(Counter(groups).values()) == {8}
            assert groups == sorted(groups, key=groups.index), "its micro-batches are neighbours"
            seen += [one.index for batch in update for one in batch]
    assert sorted(seen) == list(range(64))


def test_other_rewards_leave_micro_batches_where_they_were():
    """Curves that exist stay what they are."""
    settings = config(group=8, micro=4, rewards={})
    samples = step_samples(PROMPTS, 0, settings)
    (update,) = micro_batches_by_update(samples, 0, settings, 0, 1)
    assert [batch[0].index for batch in update] == [28, 8, 16, 4, 12, 24, 20, 0]


class Groups(Brightness):
    """Notes the group ids of every batch."""

    def __init__(self):
        super().__init__(0)
        self.seen = []

    def score(self, batch):
        self.seen.append(list(batch.group_ids))
        return super().score(batch)


@pytest.mark.parametrize(("micro", "batches"), [(2, 4), (8, 4), (16, 2)])
def test_the_collector_submits_whole_groups(micro, batches):
    settings = config(group=8, micro=micro)
    policy, scorer = ToyTokenPolicy(1), Groups()
    world = World(0, 1, torch.device("cpu"))
    with RewardSet([Reward(scorer)]) as rewards:
        collector = Collector(settings, policy, rewards, world, PROMPTS)
        experience = collector.collect(collector.roll_out(0, 0, Stopwatch()), Stopwatch())
    assert len(scorer.seen) == batches
    assert all(set(Counter(one).values()) == {8} for one in scorer.seen)
    # Scores stay with their images, whatever is scored together.
    images = {
        sample.index: image
        for update in experience.rollouts
        for rollout in update
        for sample, image in zip(rollout.samples, rollout.images, strict=True)
    }
    for index, total in zip(experience.scores.index, experience.scores.total, strict=True):
        assert float(total) == pytest.approx(images[int(index)].mean() / 255, abs=1e-5)


def test_groups_sampled_again_are_whole_too(monkeypatch):
    monkeypatch.setattr(
        Brightness, "score", lambda self, batch: Scores(self.name, [0.5] * len(batch))
    )
    settings = config(group=8, micro=2, prompts=2, resample_rounds=1)
    policy, scorer = ToyTokenPolicy(1), Groups()
    with RewardSet([Reward(scorer)]) as rewards:
        collector = Collector(settings, policy, rewards, World(0, 1, torch.device("cpu")), PROMPTS)
        collector.collect(collector.roll_out(0, 0, Stopwatch()), Stopwatch())
    assert [Counter(one).most_common(1)[0][1] for one in scorer.seen] == [8] * 4


def test_a_plan_that_would_split_groups_names_the_key():
    pairwise = ("judges.j.model=m", "rewards.unified_reward_think.judge=j")
    step = ("rollout.group_size=8", "rollout.micro_batch_size=4", "train.prompts_per_step=3")
    said = refusal(*pairwise, *step, "train.updates_per_step=2", "launch.processes=1")
    assert "rollout.micro_batch_size: rewards.unified_reward_think compares" in said
    assert "train.prompts_per_step 2 or 4" in said
    planned(*step, "train.updates_per_step=2", "launch.processes=1")
    planned(*pairwise, *step[:2], "train.prompts_per_step=4", "train.updates_per_step=2")


def test_a_custom_reward_says_that_it_needs_them():
    own = {"custom": {"a": {"function": "m:f", "whole_groups": True}}}
    assert images_together(config(8, 4, rewards=own)) == 8


def test_batches_are_joined_and_taken_apart_in_order():
    parts = [
        ScoreBatch(["a", "b"], ["p", "q"], [{}, {"x": 1}], [0, 1], source_images=["s", None]),
        ScoreBatch(["c"], ["r"], [{}], [2]),
    ]
    joined = ScoreBatch.joined(parts)
    assert joined.images == ["a", "b", "c"]
    assert joined.source_images == ["s", None, None]
    assert joined.partner_images is None
    assert joined.at([2, 0]).prompts == ["r", "p"]
    assert joined.at([2, 0]).source_images == [None, "s"]
