"""What must not change a training run of a token policy: ranks, engines, a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from atelier.tracking.run_directory import RunDirectory
from tests.support.finished_runs import (
    final,
    largest,
    require_a_kill_changes_nothing,
    undisturbed_runs,
)
from tests.support.runs import make_janus_run, random_janus_model
from tests.support.slow import slow

PROPORTIONAL = "train.adam_epsilon=1e-3"
ZERO2 = ("launch.engine=deepspeed", "launch.zero_stage=2")
AHEAD = ("train.one_step_off=true", "train.in_flight=store", "rollout.old_log_prob=rollout")
SEQUENCES = ("algorithm.ratio_level=sequence", "algorithm.clip_range=0.1")
SEQUENCES += ("algorithm.loss_mean=micro_batch", "algorithm.mask_truncated=true")
CAPPED = ("algorithm.surrogate=cispo", "algorithm.loss_mean=token", "algorithm.kl_correction=true")
THREE = ("rollout.introspection.rounds=3", "algorithm.loss_mean=token")
SETTINGS = {
    "grpo": ("grpo", 1, ()),
    "grpo-2": ("grpo", 2, ()),
    "grpo-zero2-2": ("grpo", 2, ZERO2),
    "pair": ("pair-grpo", 1, ("data.scene_pairs=0.7",)),
    "pair-2": ("pair-grpo", 2, ("data.scene_pairs=0.7",)),
    "pair-ahead": ("pair-grpo", 1, (*AHEAD, "algorithm.ground_truth.importance=shaped")),
    "lora": ("grpo", 1, ("policy.trainable=lora", "policy.lora.rank=4")),
    "v1": ("introspective-v1", 1, ()),
    "v1-2": ("introspective-v1", 2, ()),
    "v1-zero2-2": ("introspective-v1", 2, ZERO2),
    "v1-ahead": ("introspective-v1", 1, AHEAD),
    "v2": ("introspective-v2", 1, ()),
    "v3-three": ("introspective-v3", 1, THREE),
    "v3-three-2": ("introspective-v3", 2, THREE),
    "sequences": ("introspective-v1", 1, SEQUENCES),
    "sequences-2": ("introspective-v1", 2, SEQUENCES),
    "capped-ahead": ("introspective-v1", 1, (*AHEAD, *CAPPED, "algorithm.mask_truncated=true")),
    "edit": ("edit", 1, ("train.inner_epochs=2",)),
    "edit-2": ("edit", 2, ("train.inner_epochs=2",)),
}


def make(folder: Path, setting: str) -> tuple[RunDirectory, int]:
    recipe, processes, overrides = SETTINGS[setting]
    return make_janus_run(folder, f"janus-pro-1b/{recipe}", (*overrides, PROPORTIONAL)), processes


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory: pytest.TempPathFactory):
    return undisturbed_runs(make, tmp_path_factory)


@pytest.mark.parametrize(
    ("setting", "of_one_rank"),
    [
        ("pair-2", "pair"),
        *slow(("grpo-2", "grpo"), ("grpo-zero2-2", "grpo"), ("edit-2", "edit"), ("v1-2", "v1")),
        *slow(("v1-zero2-2", "v1"), ("v3-three-2", "v3-three"), ("sequences-2", "sequences")),
    ],
)
def test_ranks_and_engines_give_the_same_weights(
    undisturbed, setting: str, of_one_rank: str
) -> None:
    one, other = final(undisturbed(of_one_rank)), final(undisturbed(setting))
    untrained = load_file(random_janus_model() / "model.safetensors")
    names = {name: name.removeprefix("janus.") for name in one.weights}
    moved = largest(one.weights[name] - untrained[bare] for name, bare in names.items())
    differ = largest(value - one.weights[name] for name, value in other.weights.items())
    assert one.weights.keys() == other.weights.keys()
    assert moved > 0
    assert differ <= min(2e-5, moved / 20), f"weights moved {moved} and differ by {differ}"


@pytest.mark.parametrize(
    "setting",
    [
        *("pair", "v2"),
        *slow("grpo", "grpo-zero2-2", "pair-ahead", "lora", "v1-ahead", "capped-ahead", "edit"),
    ],
)
def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path: Path, setting: str) -> None:
    require_a_kill_changes_nothing(make, tmp_path, setting, undisturbed(setting))
