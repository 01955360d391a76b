"""The plan of ranks that only sample and ranks that only train."""

from __future__ import annotations

import pytest

from atelier.cli.tables import plan_table
from atelier.config.memory_advice import fitting
from atelier.config.plan import Plan, plan
from atelier.config.resolve import resolve
from atelier.errors import PlanError

APART = ("launch.processes=4", "launch.rollout_processes=1", "train.one_step_off=true")
SHARED = ("train.prompts_per_step=12", "rollout.micro_batch_size=8")


def planned(*overrides: str, recipe: str = "tiny/flow-grpo-fast") -> Plan:
    return plan(resolve(recipe, [*APART, *SHARED, *overrides]))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["launch.rollout_processes=4"], "launch.rollout_processes: 4 of 4 process(es) leave none"),
        (["train.one_step_off=false"], "train.one_step_off: ranks that sample and ranks that"),
        (["launch.engine=deepspeed"], "launch.rollout_processes: needs launch.engine: ddp"),
        (["launch.nodes=2"], "launch.rollout_processes: on one node only, and launch.nodes is 2"),
        (["rollout.window.scope=rank"], "rollout.window.scope: rank: what is trained would"),
        (["train.prompts_per_step=11"], "1 process(es) that sample (launch.rollout_processes), "),
        (["launch.rollout_processes=3", "train.prompts_per_step=11"], "and by 1 that train"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], reason: str) -> None:
    with pytest.raises(PlanError) as refused:
        planned(*overrides)
    assert reason in str(refused.value)


def test_all_that_it_needs_is_told_at_once() -> None:
    with pytest.raises(PlanError) as refused:
        planned("train.one_step_off=false", "rollout.old_log_prob=recompute")
    assert "  train.one_step_off: " in str(refused.value)
    assert "  rollout.old_log_prob: " in str(refused.value)


def test_policies_of_tokens_are_refused() -> None:
    with pytest.raises(PlanError, match=r"launch\.rollout_processes: policies that denoise only"):
        plan(resolve("tiny-janus/introspective-v3", ["train.one_step_off=true", *APART[:2]]))


def test_both_sides_have_to_share_a_step_equally() -> None:
    """24 micro-batches in two updates: 12 among 3, and among 5 not."""
    assert planned().accumulation == 4
    assert planned("launch.rollout_processes=2").accumulation == 6
    with pytest.raises(PlanError, match="5 process"):
        planned("launch.processes=6", "launch.rollout_processes=5")
    with pytest.raises(PlanError, match="and by 5 that train"):
        planned("launch.processes=6")


def test_pictures_are_shared_by_those_that_train() -> None:
    pictures = ("data.sft={source: scenes, scenes: 48}", "train.sft.coefficient=0.3")
    assert planned(*pictures, "train.sft.pictures_per_update=24").pictures > 0
    with pytest.raises(PlanError, match="by 3 ranks"):
        planned(*pictures, "train.sft.pictures_per_update=32")


def test_each_side_needs_memory_for_what_it_does() -> None:
    made = planned()
    both = planned("launch.rollout_processes=0")
    ours, theirs = made.memory, made.sampling_memory
    assert ours is not None
    assert theirs is not None
    assert both.memory is not None
    assert both.sampling_memory is None
    assert {"gradients", "optimizer", "buckets"} <= ours.held.keys()
    assert not {"gradients", "optimizer", "buckets"} & theirs.held.keys()
    assert (set(theirs.phases), dict(theirs.host)) == ({"prompts", "rollout", "evaluation"}, {})
    # A step of 192 images: 48 of two steps each where all do both.
    experience = both.memory.held["experience"] / (2 * 48)
    assert ours.held["experience"] == 64 * experience
    assert theirs.held["experience"] == 192 * experience
    assert ours.held["base"] == theirs.held["base"] == both.memory.held["base"]
    assert planned("algorithm.beta=0.1").sampling_memory == theirs  # no reference
    assert planned("launch.processes=2").memory.held["buckets"] == 0  # one that trains alone


def test_the_plan_shows_both_sides() -> None:
    said = plan_table(planned())
    lines = {line.split("  ")[0]: line for line in said.splitlines() if line[0] != " "}
    assert "1 only to sample, 3 only to train" in lines["processes"]
    made = planned()
    assert f"{made.rollout_passes:,} a process" in lines["passes, rollout"]
    assert f"{made.replay_passes // 3:,} a process" in lines["passes, replay"]
    assert "memory a training process" in lines
    assert "memory a sampling process" in lines
    assert "the last 1 of them only to sample" in lines["runs on: trainer"]
    usual = plan_table(planned("launch.rollout_processes=0"))
    assert "a process;" not in usual
    assert "only to" not in usual


def test_a_gpu_has_to_hold_the_side_that_needs_most() -> None:
    """Nothing is learned from a step of many images by the one rank that samples them all."""
    many = ("train.prompts_per_step=1200", "data.train_prompts=1200")
    config = resolve("tiny/flow-grpo-fast", [*APART, *SHARED, *many])
    made = plan(config)
    assert made.memory is not None
    assert made.sampling_memory is not None
    needed = max(made.memory.peak, made.sampling_memory.peak) / 2**30
    (verdict,) = fitting(config, needed * 1.2)
    assert verdict.startswith("fits")
    least = min(made.memory.peak, made.sampling_memory.peak) / 2**30
    assert needed > 1.15 * least
    assert fitting(config, least * 1.11)[0].startswith("does not fit")
