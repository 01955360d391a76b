"""docs/complex-edit.md: its configuration, its numbers and its command are true."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from atelier.complex_edit.marks import Marks
from atelier.config.paths import repository_root
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.sections.rewards import ComplexEditConfig
from atelier.data.compound_edits import CompoundEdit, Step
from atelier.data.compound_words import instruction
from atelier.data.scenes import SceneObject
from atelier.rewards.scorers.complex_edit import combined
from atelier.stages.prompts_here import prompts_here

PAGE = (repository_root() / "docs" / "complex-edit.md").read_text(encoding="utf-8")


def test_what_a_run_is_configured_with_is_of_the_schema() -> None:
    reward, suite = (
        yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    )
    config = RunConfig.model_validate(reward)
    assert config.rewards.complex_edit is not None
    judges = {"gpt": {**reward["judges"]["gpt"], **suite["judges"]["gpt"]}}
    config = RunConfig.model_validate({**suite, "judges": judges})
    assert config.evaluation.judge == "gpt"
    assert config.data.levels_for("complex_edit") == tuple(range(1, 9))


def test_what_a_copy_of_the_source_is_worth() -> None:
    (settings,) = re.findall(r"published: `(\{.*?\})`", PAGE)
    published = ComplexEditConfig(judge="j", **yaml.safe_load(settings))
    assert combined(published, Marks(0, 10, 9)) == pytest.approx(0.36)
    assert combined(published, Marks(2, 0, 6)) == pytest.approx(0.36)
    default = ComplexEditConfig(judge="j")
    assert combined(default, Marks(0, 10, 9)) == 0
    assert combined(default, Marks(5, 8, 6)) == pytest.approx(
        0.4 * 0.5 + 0.3 * 0.5 * 0.8 + 0.3 * 0.5 * 0.6
    )
    assert "0.4 F + 0.3 F P + 0.3 F Q" in PAGE


def test_the_instruction_is_one_that_is_made() -> None:
    source = tuple(
        SceneObject(shape, colour, cell)
        for colour, shape, cell in (
            *(("red", "circle", (2, 2)), ("green", "cross", (2, 0))),
            ("brown", "square", (0, 2)),
        )
    )
    steps = (
        *(Step("colour", "red circle", "blue"), Step("shape", "red circle", "square")),
        *(Step("move", "red circle", "above", "green cross"), Step("remove", "brown square")),
        Step("add", "black triangle"),
    )
    made = CompoundEdit(source, source, steps)
    assert f"> {instruction(made)}\n\nis of level {made.level}" in PAGE


def test_the_command_is_a_plan_that_works() -> None:
    (command,) = re.findall(r"atelier run --recipe (.*?)\n```", PAGE, re.DOTALL)
    recipe, *words = shlex.split(command.replace("\\\n", " "))
    config = resolve(recipe, words[1::2], Path(os.devnull))
    assert plan(config).updates
    assert prompts_here(config) is None
