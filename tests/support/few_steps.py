"""A few steps of a whole recipe on the CPU: real model, real judge, real trainer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from atelier.config.recipes import recipe_names, recipes_directory
from atelier.tracking.run_directory import RunDirectory
from tests.support.runs import make_recipe_run, metrics, train

FEW = (
    *("train.steps=3", "train.prompts_per_step=2", "rollout.group_size=4"),
    *("rollout.micro_batch_size=4", "train.evaluate_every=3", "evaluation.periodic_prompts=4"),
    *("data.train_prompts=8", "data.heldout_prompts=4", "evaluation.prompts=4"),
    *("launch.processes=1", "launch.threads=1", "launch.device=cpu"),
)


class FewSteps(NamedTuple):
    """A run of three steps, its metrics by step, and the samples that its last step kept."""

    run: RunDirectory
    rows: list[dict[str, Any]]
    kept: list[dict[str, Any]]


def recipes_of(folder: str) -> list[str]:
    """The recipes of a folder that are run as they are."""
    names = recipe_names(recipes_directory())
    return [one for one in names if one.startswith(f"{folder}/") and not one.endswith("/base")]


def few_steps(recipe: str, folder: Path) -> FewSteps:
    """Train and check what holds for every recipe: all scored, finite, replayed as drawn."""
    run = make_recipe_run(folder, recipe, FEW)
    train(run)
    rows = metrics(run)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["reward/valid_share"] == 1 for row in rows)
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert all(row["ratio/rollout_gap_mean"] < 1e-4 for row in rows)
    kept = json.loads((run.step_samples(3) / "samples.json").read_text())["samples"]
    assert len(kept) == 8
    return FewSteps(run, rows, kept)
