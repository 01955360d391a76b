"""Golden values of the Janus family's algorithms, by the real functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atelier.algorithms.advantages import group_advantages
from atelier.algorithms.base import Advantages
from atelier.algorithms.grpo import Grpo
from atelier.algorithms.introspection import final_rewards, first_accepted, segment_rewards
from atelier.algorithms.kl import k3
from atelier.config.schema import RunConfig
from atelier.config.sections.ground_truth import GroundTruthConfig
from atelier.config.sections.learning_rate import ScheduleConfig, learning_rate
from atelier.data.prompts import Prompt
from atelier.policies.base import Part, Replay, Rollout, Sample
from atelier.rewards.base import Scores
from atelier.rewards.score_table import tabulate
from atelier.training.distributed import World
from atelier.training.loss_weights import loss_weights

VALID = torch.ones(4, dtype=torch.bool)
ONE_GROUP = torch.zeros(4, dtype=torch.int64)
FIRST = torch.tensor([0.9, 0.2, 0.4, 0.7])
SECOND = torch.tensor([0.1, 0.6, 0.3, 0.95])
ANSWERS = torch.tensor([[True], [False], [False], [True]])


def advantages(rewards, groups=ONE_GROUP) -> list[float]:
    rewards = torch.as_tensor(rewards)
    valid = torch.ones(len(rewards), dtype=torch.bool)
    return group_advantages(rewards, groups, valid, ddof=1).tolist()


def close(found, wanted) -> None:
    assert found == pytest.approx(wanted, abs=2e-6)


def test_k3() -> None:
    def of(reference: float) -> float:
        log_prob = torch.tensor([[-1.0]])
        statistics = {"log_prob": log_prob, "reference_log_prob": torch.tensor([[reference]])}
        return float(k3(statistics))

    close([of(-1.5), of(-0.5)], [0.106531, 0.148721])


def test_advantages_divide_by_one_less() -> None:
    close(advantages([0.9, 0.2, 0.4, 0.7]), [1.125356, -1.125356, -0.482296, 0.482296])
    biased = group_advantages(FIRST, ONE_GROUP, VALID, ddof=0)
    close(float(biased[0]), 1.299385)


def test_a_pair_is_one_pool_or_two_groups() -> None:
    rewards = [0.9, 0.8, 1.0, 0.1, 0.3, 0.2, 0.8, 0.1]
    pooled = advantages(rewards, torch.zeros(8, dtype=torch.int64))
    wanted = [0.974983, 0.714988, 1.234979, -1.104981, -0.584990, -0.844986, 0.714988, -1.104981]
    close(pooled, wanted)
    assert sum(pooled) == pytest.approx(0, abs=1e-5)
    apart = advantages(rewards, torch.tensor([0] * 4 + [1] * 4))
    close(
        apart,
        [0.489778, 0.244889, 0.734667, -1.469334, -0.160765, -0.482296, 1.446887, -0.803826],
    )
    swapped = advantages(rewards[4:] + rewards[:4], torch.zeros(8, dtype=torch.int64))
    close(swapped, pooled[4:] + pooled[:4])


@pytest.mark.parametrize("clip", [0.2, 1e6])
@pytest.mark.parametrize(("of", "wanted"), [((1.0, -1.0), 0.00106531), ((1.0, 1.0), -0.998935)])
def test_the_loss_is_a_mean_of_means(clip: float, of: tuple[float, float], wanted: float) -> None:
    config = RunConfig.model_validate(
        {
            "policy": {"family": "janus"},
            "algorithm": {"beta": 0.04, "kl": "k3", "clip_range": clip},
        }
    )
    log_prob = torch.tensor([[-1.0, -2.0], [-0.5, -1.5]], requires_grad=True)
    reference = torch.tensor([[-1.5, -2.0], [-0.5, -1.0]])
    replay = Replay(log_prob, {"log_prob": log_prob, "reference_log_prob": reference})
    terms = Grpo.of(config).loss(replay, log_prob.detach(), torch.tensor(of)[:, None])
    samples = [Sample(index, 0, Prompt(0, 0, "a")) for index in range(2)]
    mask = torch.tensor([[True, True], [True, False]])
    images = np.zeros((2, 1, 1, 3), np.uint8)
    rollout = Rollout(samples, 2, log_prob.detach(), images, {}, mask=mask)
    kept = Advantages(torch.tensor(of)[:, None], torch.tensor([True, True]))
    world, rows = World(0, 1, torch.device("cpu")), torch.tensor([0, 1])
    weights = loss_weights("sequence", [kept], [rollout], [rows], world)
    weight = weights.of(rollout, rows, Part(slice(0, 2)))
    assert float(weight.sum()) == pytest.approx(1)
    assert float((terms.loss * weight).sum().detach()) == pytest.approx(wanted, abs=1e-6)


def test_ground_truth_is_shown_less_and_less() -> None:
    of = GroundTruthConfig().probability
    found = [of(update) for update in (0, 50, 51, 250, 450, 800, 1200, 1201)]
    close(found, [1, 1, 0.998125, 0.625, 0.25, 0.133333, 0, 0])


def test_the_learning_rate_has_two_slopes() -> None:
    focus = ScheduleConfig(
        kind="two_slopes",
        warm_up_updates=100,
        convert_updates=300,
        convert_rate=2e-6,
        last_rate=2e-7,
    )
    found = [learning_rate(1e-5, focus, at, 900) for at in (0, 50, 100, 200, 300, 600, 900)]
    assert found == pytest.approx([0, 5e-6, 1e-5, 6e-6, 2e-6, 1.1e-6, 2e-7])
    introspective = ScheduleConfig(
        kind="two_slopes", warm_up_updates=5, convert_updates=30, convert_rate=1e-7, last_rate=5e-8
    )
    found = [learning_rate(3e-7, introspective, at, 100) for at in (1, 5, 30, 65, 100)]
    assert found == pytest.approx([6e-8, 3e-7, 1e-7, 7.5e-8, 5e-8])
    # The original goes on falling below zero, or rises where the last update comes first.
    assert learning_rate(1e-5, focus, 2000, 900) == pytest.approx(2e-7)
    assert [key for key, _ in focus.conflicts(250)] == ["convert_updates"]


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_rewards_of_two_rounds(version) -> None:
    scores = torch.stack([FIRST, SECOND], dim=1)
    valid = torch.ones(4, 2, dtype=torch.bool)
    first, answer, last = segment_rewards(scores, valid, ANSWERS, version)
    assert torch.equal(first.reward, FIRST)
    close(answer.reward.tolist(), [0.9, 0.8, 0.6, 0.7])
    close(advantages(answer.reward), [1.160996, 0.386999, -1.160996, -0.386999])
    if version == "v3":
        close(last.reward.tolist(), SECOND.tolist())
        close(advantages(last.reward), [-1.045520, 0.303538, -0.505897, 1.247879])
    else:
        close(last.reward.tolist(), [0.9, 0.6, 0.3, 0.7])
        close(advantages(last.reward), [1.099560, -0.099960, -1.299480, 0.299880])
    close(final_rewards(scores, valid, ANSWERS).reward.tolist(), [0.9, 0.6, 0.3, 0.7])


def test_rewards_that_are_all_zero_teach_to_say_no() -> None:
    """What the original does without a reward: here such a run cannot begin."""
    scores, valid = torch.zeros(4, 2), torch.ones(4, 2, dtype=torch.bool)
    first, answer, last = segment_rewards(scores, valid, ANSWERS, "v1")
    assert advantages(first.reward) == [0, 0, 0, 0]
    assert advantages(last.reward) == [0, 0, 0, 0]
    close(advantages(answer.reward), [-0.865875, 0.865875, 0.865875, -0.865875])


def test_rewards_of_an_edit() -> None:
    scores = {"following": [0.9, 0.4, 0.6], "preserving": [0.2, 0.8, 0.5]}
    weights = {"following": [1.0] * 3, "preserving": [0.25] * 3}
    table = tabulate({name: [Scores(name, values)] for name, values in scores.items()}, weights)
    close(table.total.tolist(), [0.95, 0.6, 0.725])
    found = advantages(table.total, torch.zeros(3, dtype=torch.int64))
    close(found, [1.080025, -0.892195, -0.187831])


# More than the originals do ------------------------------------------------------------------


def test_a_third_round_is_rewarded_where_it_was_reached() -> None:
    scores = torch.tensor([[0.3, 0.8, 0.0], [0.2, 0.4, 0.9], [0.7, 0.0, 0.0]])
    made = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
    accepted = torch.tensor([[False, True], [False, False], [True, False]])
    assert first_accepted(accepted).tolist() == [1, 2, 0]
    one, told, two, retold, three = segment_rewards(scores, made, accepted, "v1")
    close(one.reward.tolist(), [0.3, 0.2, 0.7])
    close(told.reward.tolist(), [0.7, 0.8, 0.7])
    close(two.reward.tolist(), [0.8, 0.4, 0.7])
    assert retold.valid.tolist() == [True, True, False]
    close(retold.reward[:2].tolist(), [0.8, 0.6])
    close(three.reward.tolist(), [0.8, 0.9, 0.7])


def test_a_missing_score_is_missing_from_what_needs_it() -> None:
    scores = torch.tensor([[0.3, 0.8], [0.2, 0.4]])
    valid = torch.tensor([[True, False], [False, True]])
    accepted = torch.tensor([[False], [True]])
    segments = segment_rewards(scores, valid, accepted, "v1")
    assert [one.valid.tolist() for one in segments] == [
        [True, False],
        [True, False],
        [False, False],
    ]
    assert [one.valid.tolist() for one in segment_rewards(scores, valid, accepted, "v3")][2] == [
        False,
        True,
    ]
