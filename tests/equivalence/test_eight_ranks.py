"""Eight ranks train as one does, and go on as eight or as four where one of them was killed.

A group of 16 images is two micro-batches, which ranks draw: hardly any group lies on one rank.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from atelier.config.paths import repository_root
from atelier.config.resolve import load_stage_config, write_stage_configs
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import latest_checkpoint, load_checkpoint
from tests.flows.conftest import processes_of, wait_for_end
from tests.support.finished_runs import (
    assert_equal,
    final,
    largest,
    require_a_kill_changes_nothing,
    undisturbed_runs,
)
from tests.support.runs import SETTINGS, environment, make_recipe_run, metrics, train

pytestmark = pytest.mark.slow

SECONDS = 300.0
STEP = (
    *SETTINGS,
    "rewards.jpeg_compressibility=null",
    "rewards.custom.grey={function: 'tests.support.grey:greyness', weight: 1.0}",
    "rollout.group_size=16",
    "train.prompts_per_step=8",
    "train.keep_checkpoints=3",
    # Four micro-batches of images to evaluate, the last of one: half of eight ranks have none.
    "train.evaluate_every=3",
    "evaluation.periodic_prompts=7",
    "evaluation.micro_batch_size=2",
    "data.train_prompts=16",
    "data.heldout_prompts=8",
)
# Below epsilon AdamW's update is proportional to the gradient; see test_training.py.
PROPORTIONAL = "train.adam_epsilon=1e-3"
FULL = ("tiny/flow-grpo-fast", (PROPORTIONAL,))
LORA = ("tiny/flow-grpo-lora", (PROPORTIONAL, "train.learning_rate=1e-2"))
SOME = "rewards.custom.grey.function='tests.support.grey:greyness_of_some'"
UNEQUAL = (FULL[0], (*FULL[1], SOME, "rewards.min_valid_share=0.5"))
ZERO2 = (FULL[0], (*FULL[1], "launch.engine=deepspeed", "launch.zero_stage=2"))
RECIPES = {"full": FULL, "lora": LORA, "unequal": UNEQUAL, "zero2": ZERO2}


def make(folder: Path, setting: str) -> tuple[RunDirectory, int]:
    """A setting is a name of RECIPES and a number of ranks: full-8."""
    name, ranks = setting.rsplit("-", 1)
    recipe, own = RECIPES[name]
    place = (f"launch.processes={ranks}", f"tracking.mlflow_uri=sqlite:///{folder / 'mlflow.db'}")
    return make_recipe_run(folder / "run", recipe, (*STEP, *own, *place)), int(ranks)


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory: pytest.TempPathFactory):
    return undisturbed_runs(make, tmp_path_factory)


def assert_trained_alike(one: RunDirectory, other: RunDirectory) -> None:
    """Up to the order of sums: losses, norms of gradients, last weights and their average."""
    before, last, theirs = first(one), final(one), final(other)
    moved = largest(value - before[name] for name, value in last.weights.items())
    assert moved > 0
    near = {"rtol": 2**-22, "atol": moved / 1000}  # as far as float32 can tell
    torch.testing.assert_close(dict(last.weights), dict(theirs.weights), **near)
    torch.testing.assert_close(dict(last.ema or {}), dict(theirs.ema or {}), **near)
    for ours, others in zip(metrics(one), metrics(other), strict=True):
        # The first images are the same; those of the second have a grey level here and there.
        share = 1e-6 if ours["step"] == 1 else 1e-3
        for name in ("grad_norm", "reward/mean", "reward/std"):
            assert ours[name] == pytest.approx(others[name], rel=share), (ours["step"], name)
        # A mean of advantages, which are about 1 and cancel out.
        assert ours["loss/policy"] == pytest.approx(others["loss/policy"], abs=share)


def first(run: RunDirectory) -> Mapping[str, torch.Tensor]:
    """Weights after the first step."""
    return load_checkpoint(run.checkpoints / "step-000001").weights


@pytest.mark.parametrize(
    ("eight", "one"),
    [
        ("full-8", "full-1"),
        ("lora-8", "lora-1"),
        ("unequal-8", "unequal-1"),
        ("zero2-8", "full-1"),
    ],
)
def test_eight_ranks_train_as_one_does(undisturbed, eight: str, one: str) -> None:
    assert_trained_alike(undisturbed(one), undisturbed(eight))


@pytest.mark.parametrize("name", ["full", "lora", "unequal"])
def test_what_weights_of_the_start_draw_is_the_same_to_the_bit(undisturbed, name: str) -> None:
    """Images of the first step by their scores, and which of them have one."""
    one, eight = (metrics(undisturbed(f"{name}-{ranks}"))[0] for ranks in (1, 8))
    drawn = [key for key in one if key.startswith(("reward/", "window/", "advantage/"))]
    assert len(drawn) > 5
    assert {key: one[key] for key in drawn} == {key: eight[key] for key in drawn}
    assert (one["reward/valid_share"] < 1) == (name == "unequal")


def test_an_evaluation_with_an_unequal_last_batch_has_all_images(undisturbed) -> None:
    """Up to a grey level: weights that differ in their last bits paint them."""
    one, eight = (_evaluation_images(undisturbed(f"full-{ranks}")) for ranks in (1, 8))
    assert one.keys() == eight.keys()
    assert len(one) == 7
    assert max(int(np.abs(value - eight[name]).max()) for name, value in one.items()) <= 1


def _evaluation_images(run: RunDirectory) -> dict[str, np.ndarray]:
    found = (run.train / "evaluation").glob("*/step-000003/images/*.png")
    return {one.name: np.asarray(Image.open(one), dtype=int) for one in found}


@pytest.mark.parametrize("name", ["full", "zero2"])
def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path: Path, name: str) -> None:
    """To the bit: a sum of eight has an order, which a sum of two has not."""
    require_a_kill_changes_nothing(make, tmp_path, f"{name}-8", undisturbed(f"{name}-8"))


def test_a_killed_rank_ends_the_run_and_eight_or_four_go_on(undisturbed, tmp_path: Path) -> None:
    """The trainer is started as the training task starts it; nothing of it is left."""
    whole = undisturbed("lora-8")
    run, _ = make(tmp_path, "lora-8")
    stage = _train_stage(run, tmp_path)
    _kill_a_rank_after_a_step(run, tmp_path, stage)
    words, _ = stage.communicate(timeout=SECONDS)
    assert stage.returncode == 1, words
    assert "the trainer crashed 1 times (exit code 137)" in words
    assert wait_for_end(tmp_path) == []
    assert final(run).state.step < 3, "killed too late to show anything"

    half = RunDirectory(shutil.copytree(run.root, tmp_path / "half"))
    train(run, 8)
    assert_equal(final(run), final(whole))
    assert metrics(run) == metrics(whole)
    _share_out(half, 4)
    train(half, 4)
    assert_trained_alike(whole, half)


def _train_stage(run: RunDirectory, folder: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(repository_root() / "src"), str(repository_root())])
    _share_out(run, 8, max_restarts=0)
    return subprocess.Popen(
        [sys.executable, "-m", "atelier", "stage", "train", "--run", str(run.root)],
        env=environment(PYTHONPATH=path, PLACE=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _share_out(run: RunDirectory, ranks: int, **launch: int) -> None:
    config = load_stage_config(run.config("train"))
    shared = config.launch.model_copy(update={"processes": ranks, **launch})
    write_stage_configs(config.model_copy(update={"launch": shared}), run)


def _kill_a_rank_after_a_step(
    run: RunDirectory, folder: Path, stage: subprocess.Popen[str]
) -> None:
    """SIGKILL to one of eight once a first step is on disk: it is at the next one."""
    deadline = time.monotonic() + SECONDS
    victims: list[psutil.Process] = []
    while not (victims and latest_checkpoint(run.checkpoints)):
        victims = victims or [
            one for one in processes_of(folder) if one.environ().get("RANK") == "5"
        ]
        assert stage.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victims[0].kill()
