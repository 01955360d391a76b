"""What ranks that sample and ranks that train bring each other, without a run around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from atelier.algorithms.grpo import Grpo
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.errors import Stopped
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.tracking.run_directory import RunDirectory
from atelier.training.batches import micro_batches_by_update, step_samples
from atelier.training.distributed import World
from atelier.training.engines import make_engine
from atelier.training.experience import Collector, Experience, InFlight
from atelier.training.journal import Journal
from atelier.training.link import Apart, Link
from atelier.training.measures import Stopwatch
from atelier.training.session import Session
from atelier.training.sides import take_sides
from atelier.training.trainer import Trainer
from atelier.training.updates import Learner
from tests.support.ranks import on_ranks
from tests.support.toy_token_policy import Brightness, ToyTokenPolicy

PROMPTS = [Prompt(i, 0, f"prompt {i}", {}) for i in range(8)]
CONFIG = RunConfig.model_validate(
    {
        "rollout": {"group_size": 8, "micro_batch_size": 4},
        "rewards": {},
        "train": {"prompts_per_step": 4, "updates_per_step": 2},
        "launch": {"processes": 3, "rollout_processes": 1},
    }
)


@contextmanager
def doubled(policy: ToyTokenPolicy) -> Iterator[None]:
    """Inside, it samples by other weights than it trains."""
    parameters = policy.trainable().values()
    with torch.no_grad():
        for one in parameters:
            one.mul_(2)
        yield
        for one in parameters:
            one.div_(2)


@contextmanager
def linked(world: World) -> Iterator[Apart]:
    """Ranks 0 and 1 train weights of seed 1; rank 2 samples, with others until these come."""
    sides = take_sides(world, CONFIG.launch)
    policy = ToyTokenPolicy(seed=1 + sides.samples)
    with RewardSet([Reward(Brightness())]) as rewards:
        collector = Collector(CONFIG, policy, rewards, sides.peers, PROMPTS)
        yield Apart(sides, collector, lambda: doubled(policy) if sides.trains else nullcontext())


def weights(policy: Any) -> list[list[float]]:
    return [one.flatten().tolist() for one in policy.trainable().values()]


def brought(world: World) -> list[list[list[float]]]:
    with linked(world) as link:
        policy, watch = link.collector.policy, link.watch()
        found = [weights(policy)]
        link.push_sampling_weights(watch)
        found.append(weights(policy))
        link.push_weights(watch)
        return [*found, weights(policy)]


def test_weights_that_sample_are_brought_and_then_the_others() -> None:
    first, other, sampler = on_ranks(brought, 3)
    trained = weights(ToyTokenPolicy(seed=1))
    assert first == other == [trained] * 3
    twice = [[2 * value for value in one] for one in trained]
    assert sampler == [weights(ToyTokenPolicy(seed=2)), twice, trained]


def handed(world: World) -> dict[str, Any]:
    with linked(world) as link:
        watch = link.watch()
        flight, made = InFlight(3, 7, [], [], {}), None
        if link.samples:
            flight = link.collector.roll_out(3, 0, watch)
            made = link.collector.collect(flight, watch)
        experience = link.hand_over(flight, made, watch)
        return {
            "updates": [
                [(one.samples[0].index, one.old_log_probs.tolist()) for one in update]
                for update in experience.rollouts
            ],
            "total": experience.scores.total.tolist(),
            "before": experience.updates_before,
            "phases": {name for name in experience.metrics if name.startswith("time/")},
            "own": set(link.watch().seconds()),
        }


def test_each_micro_batch_goes_to_the_rank_that_learns_from_it() -> None:
    *trained, sampled = on_ranks(handed, 3)
    everything = dict(batch for update in sampled["updates"] for batch in update)
    samples = step_samples(PROMPTS, 3, CONFIG)
    assert sorted(everything) == list(range(0, 32, 4))
    for rank, one in enumerate(trained):
        mine = micro_batches_by_update(samples, 3, CONFIG, rank, 2)
        expected = [[(b[0].index, everything[b[0].index]) for b in update] for update in mine]
        assert one["updates"] == expected
        assert one["total"] == sampled["total"]
        assert one["before"] == 7  # updates, as who trains counts them
        assert one["phases"] == {
            *("time/rollout", "time/score", "time/wait_for_update"),
            *("time/reward/brightness/mean", "time/reward/brightness/max"),
        }
    assert sampled["own"] == {"time/hand_over", "time/step"}  # counted anew from here


def told(world: World) -> tuple[int | None, int]:
    """Both sides of a checkpoint with images in flight."""
    with linked(world) as link:
        held = None
        if not link.samples:
            held = Experience(4, 2, [[]], None, [], {})  # type: ignore[arg-type]
        known = link.told(held)
        return (None if known is None else known.step), len(known.rollouts) if known else -1


def test_who_samples_is_told_of_images_that_a_checkpoint_held() -> None:
    assert on_ranks(told, 3) == [(4, 1), (4, 1), (4, 0)]


def stopped(world: World) -> str:
    with linked(world) as link:
        try:
            if link.samples:
                link.meet(Stopwatch())
            else:
                with link.stopping_together():
                    raise Stopped("the replay differs")
        except Stopped as why:
            return str(why)
        return "went on"


def test_what_stops_those_that_train_stops_those_that_sample() -> None:
    assert on_ranks(stopped, 3) == ["the replay differs"] * 3


class Noted(Link):
    """Of a rank that does both, in the order of ranks that are apart; it keeps what is done."""

    def __init__(self, hands_over: bool) -> None:
        self.hands_over = hands_over
        self.done: list[str] = []

    def push_sampling_weights(self, watch: Stopwatch) -> None:
        self.done.append("sample")

    def hand_over(self, flight: InFlight, made: Experience | None, watch: Stopwatch) -> Experience:
        self.done.append(f"hand over {flight.step}")
        return super().hand_over(flight, made, watch)

    @contextmanager
    def stopping_together(self) -> Iterator[None]:
        yield
        self.done.append("scored or learned")


@pytest.mark.parametrize("hands_over", [True, False])
def test_a_step_is_handed_over_before_the_next_is_sampled(tmp_path: Path, hands_over: bool) -> None:
    """Or those that train would wait for two steps. Else it is scored while the next is sampled."""
    link = Noted(hands_over)
    own = CONFIG.train.model_copy(update={"steps": 3, "one_step_off": True, "evaluate_every": 0})
    config = CONFIG.model_copy(update={"train": own})
    alone, policy = World(0, 1, torch.device("cpu")), ToyTokenPolicy(seed=1)
    engine = make_engine(policy.module, policy.trainable(), config.train, config.launch, alone)
    session = Session(config, "digest", alone)
    session.start(engine)
    journal = Journal(RunDirectory(tmp_path), alone)
    with RewardSet([Reward(Brightness())]) as rewards, closing(journal):
        collector = Collector(config, policy, rewards, alone, PROMPTS)
        learner = Learner(config, policy, Grpo.of(config), engine, session, journal, alone)
        parts = collector, learner, session, journal, alone, PROMPTS
        Trainer(config, *parts, link=link).run()
    assert [one for one in link.done if one != "scored or learned"] == (
        ["sample", "hand over 1", "sample", "hand over 2", "sample", "hand over 3"]
        if hands_over
        else ["sample", "sample", "hand over 1", "sample", "hand over 2", "hand over 3"]
    )
    assert link.done.count("scored or learned") == 6
