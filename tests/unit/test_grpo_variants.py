"""The variants of GRPO in the loop."""

from __future__ import annotations

import functools
import math
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atelier.algorithms.advantages import group_advantages
from atelier.algorithms.comparison import Comparison
from atelier.algorithms.grpo import Grpo
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Part, Replay, Rollout
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.tracking.run_directory import RunDirectory
from atelier.training.distributed import World
from atelier.training.engines import make_engine
from atelier.training.experience import Collector, Experience
from atelier.training.journal import Journal
from atelier.training.measures import Stopwatch
from atelier.training.scores import comparison_metrics
from atelier.training.session import Session
from atelier.training.updates import Learner
from tests.support.ranks import on_ranks
from tests.support.toy_completions import ToyCompletions
from tests.support.toy_token_policy import LENGTH, Brightness, ToyTokenPolicy

ALONE = World(0, 1, torch.device("cpu"))
PROMPTS = [Prompt(i, 0, f"prompt {i}", {}) for i in range(8)]
MEANS = ("sequence", "micro_batch", "token", "constant", "sum")


# Advantages ----------------------------------------------------------------------------------

REWARDS = torch.tensor([0.2, 0.4, 0.9, 0.5, 0.1, 0.3, 0.3, 0.8])
GROUPS = torch.tensor([0] * 4 + [1] * 4)


@pytest.mark.parametrize(
    ("std", "golden"),
    [
        (
            "group",
            [-1.018703, -0.339568, 1.358271, 0, -0.920632, -0.251081, -0.251081, 1.422795],
        ),
        (
            "batch",
            [-1.061470, -0.353823, 1.415294, 0, -0.973014, -0.265368, -0.265368, 1.503749],
        ),
        ("none", [-0.3, -0.1, 0.4, 0, -0.275, -0.075, -0.075, 0.425]),
    ],
)
def test_golden_scales_of_rewards(std: str, golden: list[float]) -> None:
    valid = torch.ones(8, dtype=torch.bool)
    found = group_advantages(REWARDS, GROUPS, valid, std, ddof=1)
    assert found.tolist() == pytest.approx(golden, abs=2e-6)


def test_golden_scale_without_what_is_missing() -> None:
    rewards = torch.tensor([0.2, math.nan, 0.9, 0.5])
    found = group_advantages(rewards, GROUPS[:4], ~rewards.isnan(), ddof=1)
    assert found.tolist() == pytest.approx([-0.948888, 0, 1.043777, -0.094889], abs=2e-6)


# The loop ------------------------------------------------------------------------------------


def config(micro_batch: int = 8, train: dict | None = None, **algorithm) -> RunConfig:
    """Of a step of 4 prompts, 8 samples each."""
    return RunConfig.model_validate(
        {
            "policy": {"family": "janus"},
            "rollout": {"group_size": 8, "micro_batch_size": micro_batch},
            "algorithm": {"kl": "k3", **algorithm},
            "rewards": {"min_valid_share": 0.5},
            "train": {
                "steps": 2,
                "prompts_per_step": 4,
                "updates_per_step": 2,
                "learning_rate": 0.02,
                "adam_epsilon": 1e-3,  # proportional to the gradient
                **(train or {}),
            },
        }
    )


def experience_of(
    settings: RunConfig, world: World, policy: ToyTokenPolicy, reward: Brightness
) -> Experience:
    with RewardSet([Reward(reward)]) as rewards:
        collector = Collector(settings, policy, rewards, world, PROMPTS)
        return collector.collect(collector.roll_out(1, 0, Stopwatch()), Stopwatch())


def learned(
    settings: RunConfig, world: World = ALONE, policy: ToyTokenPolicy | None = None
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The weights after a step, and its metrics."""
    policy = policy or ToyCompletions(3)
    policy.prepare_reference()
    trainable = policy.trainable()
    engine = make_engine(policy.module, trainable, settings.train, settings.launch, world)
    session = Session(settings, "digest", world)
    session.start(engine)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Journal(RunDirectory(Path(folder)), world)) as journal,
    ):
        algorithm = Grpo.of(settings)
        learner = Learner(settings, policy, algorithm, engine, session, journal, world)
        metrics = learner.learn(experience_of(settings, world, policy, Brightness()))
        return engine.weights(), metrics


def means_learned(world: World) -> dict[str, dict[str, Tensor]]:
    return {mean: learned(config(loss_mean=mean), world)[0] for mean in MEANS}


@functools.cache
def alone() -> dict[str, dict[str, Tensor]]:
    return means_learned(ALONE)


@functools.cache
def on_two() -> list[dict[str, dict[str, Tensor]]]:
    return on_ranks(means_learned, 2)


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    return max(float((value - theirs[name]).abs().max()) for name, value in ours.items())


@pytest.mark.parametrize("mean", MEANS)
def test_ranks_do_not_change_a_mean(mean: str) -> None:
    first, second = on_two()
    assert difference(first[mean], second[mean]) == 0
    assert difference(first[mean], alone()[mean]) < 1e-6
    others = [difference(alone()[mean], alone()[other]) for other in MEANS if other != mean]
    assert min(others) > 1e-5


@pytest.mark.parametrize("mean", MEANS)
def test_accumulation_does_not_change_a_mean_but_that_of_micro_batches(mean: str) -> None:
    """One update of all 32 samples: an update of several takes other ones into each."""
    once = {"updates_per_step": 1}
    small, _ = learned(config(8, once, loss_mean=mean))
    large, _ = learned(config(16, once, loss_mean=mean))
    assert (difference(small, large) < 1e-6) == (mean != "micro_batch")


@pytest.mark.parametrize(
    "settings",
    [
        {"ratio_level": "sequence"},
        {"surrogate": "cispo"},
        {"surrogate": "sapo"},
        {"surrogate": "vespo"},
        {"beta": 0.5, "kl_correction": True},
        {"mask_truncated": True},
    ],
    ids=str,
)
def test_every_choice_is_the_loop_s(settings: dict) -> None:
    """Over two epochs the ratio leaves 1, and each setting changes what is learned."""
    epochs = {"inner_epochs": 2, "learning_rate": 0.1}
    plain, before = learned(config(8, epochs, **{"beta": settings.get("beta", 0.0)}))
    found, metrics = learned(config(8, epochs, **settings))
    assert difference(plain, found) > 1e-5
    assert all(math.isfinite(one) for one in metrics.values())
    assert before.keys() == metrics.keys()


class Watched(ToyCompletions):
    """Notes what gradient every log-probability got."""

    def __init__(self) -> None:
        super().__init__(3)
        self.seen: list[tuple[Rollout, Tensor]] = []

    def replay(self, module, rollout, part, with_reference):
        replay = super().replay(module, rollout, part, with_reference)
        replay.log_prob.register_hook(lambda gradient: self.seen.append((rollout, gradient)))
        return replay


def test_the_loop_weighs_a_token_alike_in_every_update() -> None:
    """Of hardly any learning rate, so that the ratio stays 1 and a gradient is -A times weight."""
    settings = config(loss_mean="token", train={"learning_rate": 1e-9})
    scores = experience_of(settings, ALONE, ToyCompletions(3), Brightness()).scores
    relative = Comparison.of(settings).advantages(scores).values
    policy = Watched()
    learned(settings, policy=policy)
    tokens = sum(int(rollout.mask.sum()) for rollout, _ in policy.seen)
    assert len(policy.seen) == 4
    for rollout, gradient in policy.seen:
        own = relative[[one.index for one in rollout.samples]]
        wanted = torch.where(rollout.mask, -own * 2 / tokens, 0.0)
        assert torch.allclose(gradient, wanted, atol=1e-6)


def test_the_correction_of_the_kl_is_the_ratio() -> None:
    new = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    old, reference = torch.tensor([[-1.3, -1.9]]), torch.tensor([[-1.5, -2.5]])
    replay = Replay(new, {"log_prob": new, "reference_log_prob": reference})
    nothing = torch.zeros(1, 1)
    found = {
        correction: Grpo.of(config(beta=1.0, kl_correction=correction)).loss(replay, old, nothing)
        for correction in (False, True)
    }
    ratio = (new - old).exp().detach()
    assert torch.allclose(found[True].loss, found[False].loss * ratio)
    (gradient,) = torch.autograd.grad(found[True].loss.sum(), new)
    # r (e^d - d - 1) has the derivative -r d: that of the KL itself, its score function weighed.
    assert torch.allclose(gradient, -ratio * (reference - new.detach()))


class Endless(ToyCompletions):
    """Says that nothing it wrote came to an end."""

    def rollout(self, *arguments):
        rollout = super().rollout(*arguments)
        rollout.ended[:] = False
        return rollout


@pytest.mark.parametrize("old", ["rollout", "recompute"])
def test_where_all_was_cut_off_nothing_is_learned(old: str) -> None:
    settings = config(mask_truncated=True)
    again = settings.rollout.model_copy(update={"old_log_prob": old})
    settings = settings.model_copy(update={"rollout": again})
    policy = Endless(3)
    before = {name: value.detach().clone() for name, value in policy.trainable().items()}
    weights, metrics = learned(settings, policy=policy)
    assert difference(before, weights) == 0
    assert metrics["grad_norm"] == 0
    assert metrics["rollout/truncated_share"] == 1


def test_what_was_cut_off_counts_in_its_group_and_is_not_trained_on() -> None:
    settings = config(mask_truncated=True)
    policy = ToyCompletions(3)
    experience = experience_of(settings, ALONE, policy, Brightness())
    ended = torch.cat([one.ended for update in experience.rollouts for one in update])
    assert 0 < int(ended.sum()) < 32
    relative = Comparison.of(settings).advantages(experience.scores)
    assert bool(relative.kept.all())
    for rollout in (one for update in experience.rollouts for one in update):
        masked = rollout.without_truncated()
        trained, own = masked.trained_count(0), rollout.trained_count(0)
        assert torch.equal(trained, torch.where(rollout.ended[:, 0], own, 0.0))
        assert bool((own[~rollout.ended[:, 0]] == LENGTH).all())
    _, metrics = learned(settings)
    assert metrics["rollout/truncated_share"] == pytest.approx(1 - float(ended.float().mean()))
    rollouts = [one for update in experience.rollouts for one in update]
    lengths = torch.cat([one.trained_count(0) for one in rollouts])
    assert metrics["rollout/mean_length"] == pytest.approx(float(lengths.mean()))
    assert metrics["rollout/longest"] == LENGTH > float(lengths.mean())


def test_drift_is_of_what_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last update, in the order of its micro-batches."""
    policy, seen = ToyCompletions(3), []
    metrics = Grpo.drift_metrics
    monkeypatch.setattr(
        Grpo, "drift_metrics", lambda self, drift: seen.append(drift) or metrics(self, drift)
    )
    replay, replayed = policy.replay, []

    def recorded(module, rollout, part, with_reference):
        made = replay(module, rollout, part, with_reference)
        gap = made.log_prob.detach() - rollout.old_log_probs[:, part.actions]
        replayed.append(gap[rollout.trained(part) > 0])
        return made

    monkeypatch.setattr(policy, "replay", recorded)
    learned(config(micro_batch=8), policy=policy)
    assert len(seen) == 2
    assert len(replayed) == 4
    assert torch.equal(seen[1], torch.cat(replayed[2:]))
    assert len(seen[1]) < 2 * 8 * LENGTH, "some was behind an end"


class Pieces(ToyCompletions):
    """Replays a sequence in two passes."""

    def parts(self, rollout):
        yield Part(slice(0, 2))
        yield Part(slice(2, LENGTH))


def test_a_policy_that_replays_in_pieces_has_no_ratio_of_sequences() -> None:
    whole, _ = learned(config())
    pieces, _ = learned(config(), policy=Pieces(3))
    assert difference(whole, pieces) < 1e-6
    for settings in ({"ratio_level": "sequence"}, {"surrogate": "vespo"}):
        with pytest.raises(ValueError, match="0 to 2 are no whole segment"):
            learned(config(**settings), policy=Pieces(3))


class FailingJudge(Brightness):
    """Fails for all images of the first prompt that it sees, and for one of every other."""

    def score(self, batch: ScoreBatch) -> Scores:
        found: list[Score] = []
        for group, value in zip(batch.group_ids, super().score(batch).values, strict=True):
            first = len(found) % 8 == 0
            lost = group == 0 or first
            found.append(Missing("the judge's answer cannot be read") if lost else value)
        return Scores(self.name, found)


def test_a_judge_that_fails_leaves_its_images_out() -> None:
    """Of 4 groups of 8, one has no score and three have 7."""
    settings = config(advantage_ddof=1)
    scores = experience_of(settings, ALONE, ToyCompletions(3), FailingJudge()).scores
    assert int(scores.valid.sum()) == 3 * 7
    relative = Comparison.of(settings).advantages(scores)
    values = relative.values[:, 0]
    assert torch.equal(relative.kept, scores.valid)
    assert values[~scores.valid].abs().max() == 0
    for group in (1, 2, 3):
        own = (scores.group_ids == group) & scores.valid
        total = scores.total[own]
        wanted = (total - total.mean()) / (total.std(correction=1) + 1e-4)
        assert torch.allclose(values[own], wanted, atol=1e-5)
    metrics = comparison_metrics(scores, Comparison.of(settings))
    assert metrics["advantage/sparse_group_share"] == 1 / 4
    assert metrics["advantage/zero_std_share"] >= 1 / 4
