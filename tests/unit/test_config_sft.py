"""What the plan says of captioned pictures, and which it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier.config.plan import Plan, plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError, PlanError

SCENES = "data.sft.source=scenes"
ON = ("train.sft.coefficient=1e-4", "launch.processes=1")


def configured(*overrides: str, recipe: str = "tiny/flow-grpo-fast") -> RunConfig:
    return resolve(recipe, overrides, Path(os.devnull))


def planned(*overrides: str, world_size: int | None = None) -> Plan:
    return plan(configured(*overrides), world_size)


def test_pictures_and_their_memory_are_counted() -> None:
    """40 steps of 2 updates of 16; every third step has it 13 times."""
    assert planned("launch.processes=1").pictures == 0
    made = planned(*ON, SCENES)
    assert made.pictures == 40 * 2 * 16
    assert planned(*ON, SCENES, "train.sft.every=3").pictures == 13 * 2 * 16
    assert planned(*ON, SCENES, "train.inner_epochs=2").pictures == 2 * made.pictures
    assert made.memory is not None
    assert "pictures" in made.memory.phases
    few = planned(*ON, SCENES, "train.sft.pictures_per_update=4").memory
    assert few is not None
    assert few.at("pictures") < made.memory.at("pictures")
    guided = planned(*ON, SCENES, "rollout.guidance_scale=3").memory
    assert guided is not None
    assert guided.at("pictures") == made.memory.at("pictures"), "pictures have no guidance"
    none = planned("launch.processes=1").memory
    assert none is not None
    assert "pictures" not in none.phases


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (ON, "train.sft.coefficient: needs captioned pictures: data.sft.source scenes or files"),
        (
            [*ON, SCENES, "train.sft.pictures_per_update=24"],
            "train.sft.pictures_per_update: 24 pictures cannot be shared in micro-batches of 16 "
            "(rollout.micro_batch_size) by 1 rank (launch.processes x launch.nodes); 16 or 32 wo",
        ),
        (
            [*ON, SCENES, "launch.processes=2"],
            "train.sft.pictures_per_update: 16 pictures cannot be shared in micro-batches of 16 "
            "(rollout.micro_batch_size) by 2 ranks (launch.processes x launch.nodes); 32 works",
        ),
        (
            [*ON, SCENES, "launch.processes=1", "launch.nodes=2", "launch.master_address=10.0.0.1"],
            "(rollout.micro_batch_size) by 2 ranks (launch.processes x launch.nodes); 32 works",
        ),
        ([*ON, SCENES, "data.sft.scenes=10"], "data.sft.scenes: 10 are fewer than"),
        (
            ["data.sft={source: files, files: {own: {path: no/such.jsonl}}}"],
            "data.sft.files.own.path: there is no file no/such.jsonl",
        ),
        (
            ["data.sft={source: files, files: {own: {path: no/own-00000-of-00002.parquet}}}"],
            "data.sft.files.own.path: there is no file no/own-00001-of-00002.parquet",
        ),
    ],
)
def test_an_impossible_plan_names_its_field(overrides: list[str], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        planned(*overrides)
    assert says in str(caught.value)


def test_a_policy_of_tokens_learns_from_no_pictures() -> None:
    config = configured(*ON, SCENES, recipe="tiny-janus/grpo")
    with pytest.raises(PlanError, match=r"train\.sft\.coefficient: janus does not learn"):
        plan(config)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.sft.coefficient=1.5", "train.sft.coefficient: 1.5 is more than 1"),
        ("train.sft.coefficient=-1", "train.sft.coefficient"),
        ("train.sft.caption_dropout=2", "train.sft.caption_dropout"),
        ("train.sft.every=0", "train.sft.every"),
        ("train.sft.coefficent=1", "did you mean train.sft.coefficient"),
        ("data.sft.source=files", "data.sft.files: is required with data.sft.source: files"),
        ("data.sft.files={own: {path: a.jsonl}}", "data.sft.files: is read with data.sft.source"),
        ("data.sft.files={Own File: {path: a.jsonl}}", "data.sft.files"),
        (
            "data.sft={source: files, files: {own: {path: a.jsonl, data_root: b}}}",
            "data.sft.files.own.data_root: belongs to a file that lists others, .py or .yaml",
        ),
        ("data.sft.files={own: {pth: a.jsonl}}", "did you mean data.sft.files.own.path"),
    ],
)
def test_a_mistake_is_refused_with_its_key(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configured(override)


def test_more_than_one_part_is_possible_where_it_is_added() -> None:
    configured("train.sft.coefficient=1.5", "train.sft.mix=additive")


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ([SCENES], ["data.sft.source"]),
        (["train.sft.every=2"], ["train.sft.every"]),
        ([*ON, SCENES, "train.sft.every=41"], ["train.sft.every"]),
        ([*ON, SCENES, "data.sft.sampling_mode=weight_only"], ["data.sft.sampling_mode"]),
        ([*ON, SCENES], []),
    ],
)
def test_what_does_nothing_is_warned_of(overrides: list[str], keys: list[str]) -> None:
    said = [one.split(":")[0] for one in planned(*overrides).warnings]
    assert [one for one in said if ".sft." in one] == keys
