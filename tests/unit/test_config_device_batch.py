"""Prompts a step from samples a device and accumulation."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner, Result

from atelier.cli.application import application
from atelier.config.device_batch import prompts_per_step
from atelier.errors import PlanError


@pytest.mark.parametrize(
    ("per_device", "accumulation", "processes", "group_size", "prompts"),
    [(8, 1, 2, 8, 2), (8, 2, 1, 16, 1), (8, 16, 1, 16, 8), (16, 1, 8, 16, 8), (1, 2, 8, 8, 2)],
)
def test_prompts_of_a_step(
    per_device: int, accumulation: int, processes: int, group_size: int, prompts: int
) -> None:
    assert prompts_per_step(per_device, accumulation, processes, group_size) == prompts


def test_several_updates_share_a_step() -> None:
    assert prompts_per_step(8, 2, 2, 8, updates=3) == 12


@pytest.mark.parametrize(
    ("numbers", "works"),
    [
        ((8, 3, 1, 16), "24 samples a step.*accumulation 2 or 4, or rollout.group_size 12 or 24$"),
        ((7, 1, 1, 16), "7 samples a step.*accumulation 16, or rollout.group_size 7$"),
        ((1, 1, 1, 8), "1 samples a step.*what works: accumulation 8$"),
    ],
)
def test_no_whole_number_of_groups_is_refused(numbers: tuple[int, ...], works: str) -> None:
    with pytest.raises(PlanError, match=works):
        prompts_per_step(*numbers)


def test_what_works_does() -> None:
    """Every number that a refusal names is one that is taken."""
    assert prompts_per_step(8, 2, 1, 16) == 1
    assert prompts_per_step(8, 4, 1, 16) == 2
    assert prompts_per_step(8, 3, 1, 12) == 2
    assert prompts_per_step(8, 3, 1, 24) == 1


def planned(*arguments: str) -> Result:
    settings = ("--set", "launch.processes=2", "--set", "rollout.group_size=8")
    recipe = ("--recipe", "tiny-janus/grpo", "--params", os.devnull)
    once = ("--set", "train.updates_per_step=1")
    return CliRunner().invoke(application, ["plan", *recipe, *once, *settings, *arguments])


def test_the_command_finds_the_settings_and_plans_with_them() -> None:
    found = planned("--per-device", "16", "--accumulation", "3")
    assert found.exit_code == 0, found.output
    settings, *table = found.output.splitlines()
    assert settings == "--set rollout.micro_batch_size=16 --set train.prompts_per_step=12"
    rows = {line.split("  ")[0]: line.split()[-1] for line in table if not line.endswith(")")}
    assert rows["prompts a step"] == "12"
    assert any(line.startswith("accumulation") and " 3 " in line for line in table)
    again = planned(*settings.split())
    assert again.stdout == "".join(f"{line}\n" for line in table)


def test_the_command_refuses_what_makes_no_whole_groups() -> None:
    found = planned("--per-device", "3")
    assert isinstance(found.exception, PlanError)
    assert "6 samples a step, no whole number of groups of 8" in str(found.exception)
    assert planned("--accumulation", "3").exit_code == 2
