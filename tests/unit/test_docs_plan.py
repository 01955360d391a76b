"""docs/plan.md: its example is today's plan, and every line of a plan is explained."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from atelier.cli.plan_page import BEGIN, END, with_example
from atelier.cli.tables import _prompt_rows, plan_table
from atelier.config.keys import known_keys
from atelier.config.paths import repository_root
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError
from atelier.stages.prompts_here import PromptsHere

PAGE = (repository_root() / "docs" / "plan.md").read_text(encoding="utf-8")
EXPLAINED = set(re.findall(r"`([^`]+)`", PAGE.partition(END)[2]))
# One of each form a plan has: steps, tokens of images, drawn again, and completions.
RECIPES = (
    *("tiny/mixture", "tiny-janus/introspective-v1", "tiny-qwen/mmmg-lora", "tiny/mr-grpo"),
    *("qwen-image/mmmg-lora", "sd35m/flow-grpo"),
)


def test_the_example_is_current() -> None:
    assert with_example(PAGE) == PAGE, "run `atelier docs plan --write`"


def test_a_page_without_a_place_for_it_is_refused() -> None:
    for page in ("", BEGIN, END + BEGIN):
        with pytest.raises(ConfigError, match=r"docs/plan\.md: no place for the example"):
            with_example(page)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_line_of_a_plan_is_explained(recipe: str) -> None:
    overrides = ["rollout.environment.gpus=1"] if recipe == "qwen-image/mmmg-lora" else []
    planned = plan(resolve(recipe, overrides, Path(os.devnull)))
    names = {name_of(line) for line in plan_table(planned).splitlines() if line[0] != " "}
    assert names <= EXPLAINED, names - EXPLAINED
    memory = planned.memory
    assert memory is not None
    assert {*memory.phases, "held", "main memory"} <= EXPLAINED
    phases = [*memory.phases.values(), memory.held, memory.host, memory.painter]
    parts = {name for one in phases for name in one}
    assert parts <= EXPLAINED, parts - EXPLAINED


def test_every_line_of_prompts_is_explained() -> None:
    none = {"train": 0, "heldout": 0}
    there = PromptsHere(
        *(1, 1, 2, 2, none),
        dropped=1,
        malformed=1,
        unusable=1,
        without_target={"a": 1},
        with_truth=1,
    )
    names = {row[0] for row in _prompt_rows(there)}
    assert len(names) == 7
    assert names <= EXPLAINED


def test_keys_exist() -> None:
    sections = "|".join(RunConfig.model_fields)
    keys = {one for one in EXPLAINED if re.fullmatch(rf"(?:{sections})\.[a-z_.]+", one)}
    assert keys
    assert keys <= known_keys()


def name_of(line: str) -> str:
    name = re.split(r"\s{2,}", line)[0]
    name = re.sub("^money, .*", "money, NAME", name)
    return "runs on:" if name.startswith("runs on:") else name
