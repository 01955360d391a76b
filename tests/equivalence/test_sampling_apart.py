"""Ranks that only sample, and ranks that only train, against ranks that do both one step off."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from atelier.config.resolve import load_stage_config, write_stage_configs
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory
from tests.support.finished_runs import (
    assert_equal,
    final,
    kill_after_a_step,
    largest,
    require_a_kill_changes_nothing,
    samples,
    undisturbed_runs,
)
from tests.support.runs import (
    make_run,
    metrics,
    random_deepgen_model,
    start,
    train,
    untrained_pipeline,
)
from tests.support.slow import slow

AHEAD = ("train.one_step_off=true", "train.in_flight=store")
DRAINED = ("train.one_step_off=true", "train.checkpoint_every=2")
LORA = ("policy.trainable=lora", "policy.lora={rank: 4, alpha: 8}", *AHEAD)
NFT = (
    "algorithm.name=nft",
    "algorithm.clip_range=null",
    "algorithm.beta=0.001",
    "algorithm.kl=velocity",
    "rollout.dynamics=ode",
    "rollout.solver=dpm_solver",
    "train.evaluate_every=1",
    "evaluation.periodic_prompts=8",
    "evaluation.micro_batch_size=2",
    *AHEAD,
)
DEEPGEN = ("policy.family=deepgen", "algorithm.beta=0.001", "algorithm.kl=velocity", *AHEAD)
# Below epsilon AdamW's update is proportional to the gradient; see test_training.py.
PROPORTIONAL = "train.adam_epsilon=1e-3"

# Ranks that sample and ranks that train; no ranks that only sample: all do both.
SETTINGS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "both-1": (0, 1, AHEAD),
    "both-2": (0, 2, AHEAD),
    "1+1": (1, 1, AHEAD),
    "2+1": (2, 1, AHEAD),
    "1+2": (1, 2, AHEAD),
    "drained-1": (0, 1, DRAINED),
    "drained-1+1": (1, 1, DRAINED),
    "lora-1": (0, 1, LORA),
    "lora-1+1": (1, 1, LORA),
    "nft-1": (0, 1, NFT),
    "nft-1+1": (1, 1, NFT),
    "deepgen-1": (0, 1, DEEPGEN),
    "deepgen-1+1": (1, 1, DEEPGEN),
}


def make(folder: Path, setting: str) -> tuple[RunDirectory, int]:
    sampling, training, overrides = SETTINGS[setting]
    ranks = sampling + training
    own = [f"launch.processes={ranks}", f"launch.rollout_processes={sampling}", PROPORTIONAL]
    if overrides is DEEPGEN:
        own.append(f"policy.path={random_deepgen_model()}")
    return make_run(folder, (*overrides, *own)), ranks


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory: pytest.TempPathFactory):
    return undisturbed_runs(make, tmp_path_factory)


@pytest.mark.parametrize(
    ("apart", "both"),
    [
        ("1+1", "both-1"),
        ("1+2", "both-2"),
        ("nft-1+1", "nft-1"),
        *slow(("2+1", "both-1"), ("drained-1+1", "drained-1"), ("lora-1+1", "lora-1")),
        *slow(("deepgen-1+1", "deepgen-1")),
    ],
)
def test_as_many_ranks_that_train_give_the_same_bits(undisturbed, apart: str, both: str) -> None:
    """Weights, averages, moments, images, scores and all other metrics."""
    ours, theirs = undisturbed(apart), undisturbed(both)
    assert_equal(final(ours), final(theirs))
    assert metrics(ours) == metrics(theirs)
    assert samples(ours) == samples(theirs)
    assert _evaluation_images(ours) == _evaluation_images(theirs)


def test_evaluation_images_are_painted_by_all_with_averaged_weights(undisturbed) -> None:
    painted = _evaluation_images(undisturbed("nft-1+1"))
    assert len(painted) == 24
    assert len(set(painted.values())) == 24  # other weights, other images


def test_other_ranks_that_train_sum_in_another_order(undisturbed) -> None:
    one, other = final(undisturbed("both-2")), final(undisturbed("1+1"))
    weights = "transformer/diffusion_pytorch_model.safetensors"
    untrained = load_file(untrained_pipeline() / weights)
    moved = largest(value - untrained[name] for name, value in one.weights.items())
    differ = largest(value - one.weights[name] for name, value in other.weights.items())
    assert differ <= min(1e-5, moved / 20), f"weights moved {moved} and differ by {differ}"


@pytest.mark.parametrize("setting", ["1+1", *slow("1+2", "drained-1+1", "nft-1+1")])
def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path: Path, setting: str) -> None:
    whole = undisturbed(setting)
    killed = require_a_kill_changes_nothing(make, tmp_path, setting, whole)
    assert samples(whole) == samples(killed)


def test_ranks_may_be_shared_out_otherwise_after_a_kill(undisturbed, tmp_path: Path) -> None:
    run, ranks = make(tmp_path, "1+1")
    kill_after_a_step(run, ranks)
    config = load_stage_config(run.config("train"))
    both = config.launch.model_copy(update={"processes": 1, "rollout_processes": 0})
    write_stage_configs(config.model_copy(update={"launch": both}), run)
    train(run, 1)
    assert_equal(final(run), final(undisturbed("both-1")))
    assert metrics(run) == metrics(undisturbed("both-1"))


def test_metrics_say_what_each_side_did_and_how_long_it_waited(undisturbed) -> None:
    phases = {"rollout", "score", "update", "wait_for_rollout", "wait_for_update", "hand_over"}
    for _, row in read_json_lines(undisturbed("drained-1+1").metrics):
        seconds = {name: row[f"time/{name}"] for name in phases}
        own = ("update", "wait_for_rollout", "hand_over", "push")  # the last, not in every step
        assert sum(row.get(f"time/{name}", 0) for name in own) <= row["time/step"] + 1e-3
        assert min(seconds["rollout"], seconds["update"]) > 0


def test_too_few_scores_stop_both_sides_with_the_same_words(tmp_path: Path) -> None:
    failing = "{function: 'tests.support.grey:nothing', weight: 1.0}"
    own = ("rewards.jpeg_compressibility=null", f"rewards.custom.nothing={failing}")
    launch = ("launch.processes=2", "launch.rollout_processes=1")
    ranks = start(make_run(tmp_path, (*own, *launch, *AHEAD)), 2)
    assert ranks.wait() == [75, 75], ranks.output[-3000:]
    assert ranks.output.count("Stopped: step 1: only 0% of the images have a score") == 2


def _evaluation_images(run: RunDirectory) -> dict[str, bytes]:
    folder = run.train / "evaluation"
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.glob("*/*/images/*")}
