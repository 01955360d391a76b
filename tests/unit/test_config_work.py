"""What a sample costs: actions, images, and passes through the model."""

import os
from pathlib import Path

import pytest

from atelier.config.plan import Plan, plan
from atelier.config.resolve import resolve
from atelier.config.work import Work, work

NOWHERE = "policy.path=organisation/model"


def work_of(recipe: str, *overrides: str) -> Work:
    return work(resolve(recipe, overrides, Path(os.devnull)), None)


def planned(recipe: str, *overrides: str) -> Plan:
    short = ["train.steps=10", "train.schedule.kind=constant"]
    return plan(resolve(recipe, [NOWHERE, *short, *overrides], Path(os.devnull)))


def test_an_image_of_tokens() -> None:
    """Guidance has an unconditional row, which is drawn and replayed, too."""
    assert work_of("janus-pro-1b/grpo") == Work(
        actions=576, images=1, rollout=2 * 576, replay=2, evaluation=2 * 576
    )
    plain = work_of("janus-pro-1b/grpo", "rollout.guidance_scale=1", "evaluation.guidance_scale=1")
    assert plain == Work(actions=576, images=1, rollout=576, replay=1, evaluation=576)


def test_the_conditional_form_replays_one_row() -> None:
    found = work_of("janus-pro-1b/grpo", "rollout.tokens.log_prob=conditional")
    assert (found.rollout, found.replay) == (2 * 576, 1)


def test_images_and_answers_of_a_sample() -> None:
    """Three images of two rows, and two answers of one, 50 tokens long."""
    found = work_of(
        "janus-pro-1b/introspective-v1",
        "rollout.introspection={rounds: 3, answer_tokens: 50}",
    )
    assert found == Work(
        actions=3 * 576 + 2 * 50,
        images=3,
        rollout=3 * 2 * 576 + 2 * 50,
        replay=3 * 2 + 2,
        evaluation=3 * 2 * 576 + 2 * 50,
    )


def test_denoising_steps() -> None:
    found = work_of("tiny/flow-grpo-fast", "rollout.guidance_scale=3", "rollout.window.size=2")
    assert found == Work(actions=2, images=1, rollout=2 * 8, replay=2 * 2, evaluation=8)


def test_a_plan_counts_every_image_that_is_scored() -> None:
    drawn = planned("janus-pro-1b/grpo")
    judged = planned("janus-pro-1b/introspective-v1")
    assert (drawn.samples_per_step, judged.samples_per_step) == (56, 64)
    assert drawn.images == drawn.reward_calls == drawn.judge_calls == 560
    assert judged.images == judged.reward_calls == judged.judge_calls == 2 * 640
    assert judged.rollout_passes == 640 * (2 * 2 * 576 + 80)


@pytest.mark.parametrize(
    ("settings", "times"),
    [
        ([], 3),  # with gradients, through the reference, and for old log-probs
        (["algorithm.beta=0"], 2),
        (["rollout.old_log_prob=rollout"], 2),
        (["train.inner_epochs=3"], 3 * 2 + 1),
    ],
)
def test_how_often_a_sample_is_replayed(settings: list[str], times: int) -> None:
    made = planned("janus-pro-1b/grpo", *settings)
    assert made.replay_passes == 560 * 2 * times
