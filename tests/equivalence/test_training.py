"""What must not change a training run: ranks, engines, accumulation, a kill, a window."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from atelier.config.resolve import load_stage_config
from atelier.export.run import export_run
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import load_checkpoint
from tests.support.finished_runs import (
    final,
    largest,
    require_a_kill_changes_nothing,
    samples,
    undisturbed_runs,
)
from tests.support.runs import make_run, untrained_pipeline
from tests.support.slow import slow

DEEPSPEED = "launch.engine=deepspeed"
FLOAT16 = ("policy.dtype=float16", "policy.base_dtype=float16", "rollout.old_log_prob=recompute")
WEIGHTS = "diffusion_pytorch_model.safetensors"
NFT = (
    "algorithm.name=nft",
    "algorithm.clip_range=null",
    "algorithm.beta=0.001",
    "algorithm.kl=velocity",
    "rollout.dynamics=ode",
    "rollout.solver=dpm_solver",
)
LORA = ("policy.trainable=lora", "export.formats=[adapter, merged]")
AHEAD = ("train.one_step_off=true", "train.in_flight=store")
# Below epsilon AdamW's update is proportional to the gradient. With the default of 1e-8 it is a
# sign: where a gradient is nearly zero, rounding (the order of a sum over ranks) decides it.
PROPORTIONAL = "train.adam_epsilon=1e-3"


SETTINGS = {
    "single": (1, ()),
    "ddp-2": (2, ()),
    "zero2-2": (2, (DEEPSPEED, "launch.zero_stage=2")),
    "zero3-2": (2, (DEEPSPEED, "launch.zero_stage=3")),
    "offload-2": (2, (DEEPSPEED, "launch.zero_stage=3", "launch.offload=true")),
    "sd3-2": (2, (DEEPSPEED, "launch.zero_stage=3", "launch.zero_tuning=sd3")),
    "lora": (1, LORA),
    "lora-zero3-2": (2, (*LORA, DEEPSPEED, "launch.zero_stage=3")),
    "lora-offload-2": (2, (*LORA, DEEPSPEED, "launch.zero_stage=3", "launch.offload=true")),
    "nft": (1, NFT),
    "nft-2": (2, NFT),
    # Evaluated in one batch: the rank without images has to help, or the other waits for ever.
    "nft-zero3-2": (2, (*NFT, DEEPSPEED, "launch.zero_stage=3", "train.evaluate_every=3")),
    "ahead-2": (2, AHEAD),
    "nft-ahead": (1, (*NFT, *AHEAD)),
    "float16-2": (2, (*FLOAT16, "policy.trainable=lora", "policy.gradient_checkpointing=true")),
}


def make(folder: Path, setting: str) -> tuple[RunDirectory, int]:
    processes, overrides = SETTINGS[setting]
    return make_run(folder, (*overrides, PROPORTIONAL)), processes


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory: pytest.TempPathFactory):
    return undisturbed_runs(make, tmp_path_factory)


@pytest.mark.parametrize(
    ("setting", "of_one_rank"),
    [
        ("ddp-2", "single"),
        ("zero2-2", "single"),
        *slow(*((setting, "single") for setting in ("zero3-2", "offload-2", "sd3-2"))),
        *slow(*((setting, "nft") for setting in ("nft-2", "nft-zero3-2"))),
    ],
)
def test_ranks_and_engines_give_the_same_weights(
    undisturbed, setting: str, of_one_rank: str
) -> None:
    one, other = final(undisturbed(of_one_rank)), final(undisturbed(setting))
    untrained = load_file(untrained_pipeline() / "transformer" / WEIGHTS)
    moved = largest(value - untrained[name] for name, value in one.weights.items())
    differ = largest(value - one.weights[name] for name, value in other.weights.items())
    assert one.weights.keys() == other.weights.keys()
    assert differ <= min(1e-5, moved / 20), f"weights moved {moved} and differ by {differ}"


@pytest.mark.parametrize(
    ("setting", "of_one_rank"),
    [
        *slow(*((setting, "single") for setting in ("zero3-2", "offload-2", "sd3-2"))),
        *slow(*((setting, "lora") for setting in ("lora-zero3-2", "lora-offload-2"))),
    ],
)
def test_sharded_weights_have_the_same_moving_average(
    undisturbed, setting: str, of_one_rank: str
) -> None:
    alone, sharded = undisturbed(of_one_rank), undisturbed(setting)
    one, other = final(alone), final(sharded)
    before = load_checkpoint(alone.checkpoints / "step-000002").weights
    moved = largest(value - before[name] for name, value in one.weights.items())
    for kind in ("weights", "ema"):
        ours, theirs = getattr(one, kind), getattr(other, kind)
        assert ours.keys() == theirs.keys()
        differ = largest(value - theirs[name] for name, value in ours.items())
        assert differ <= moved / 20, f"{kind} moved {moved} in a step and differ by {differ}"
    assert other.ema is not None
    assert largest(value - other.weights[name] for name, value in other.ema.items()) > moved / 20


@pytest.mark.parametrize("setting", slow("zero3-2", "lora-offload-2"))
def test_what_shards_trained_is_exported_and_proven(undisturbed, setting: str) -> None:
    """From a checkpoint that ranks with parts of the weights wrote, in every format."""
    run = undisturbed(setting)
    config = load_stage_config(run.config("export"))
    report = export_run(run, config)
    assert sorted(one.directory.name for one in report.published) == sorted(config.export.formats)


@pytest.mark.parametrize(
    "setting",
    [
        *("single", "ddp-2"),
        *slow("zero2-2", "zero3-2", "offload-2", "lora-offload-2", "float16-2"),
        *slow("nft-2", "ahead-2", "nft-ahead"),
    ],
)
def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path: Path, setting: str) -> None:
    whole = undisturbed(setting)
    killed = require_a_kill_changes_nothing(make, tmp_path, setting, whole)
    assert samples(whole) == samples(killed)
    assert len(samples(whole)) == 17  # 16 images of all ranks, and what is said of them


def test_the_policy_that_samples_lags_behind_the_trained_one(undisturbed) -> None:
    """By 0.001 n after n updates: 0.6 % of it stays after the third step, of two updates each."""
    whole = undisturbed("nft")
    last = final(whole)
    before = load_checkpoint(whole.checkpoints / "step-000002")
    assert last.behaviour is not None
    assert before.behaviour is not None
    for name, value in last.behaviour.items():
        expected = 0.006 * before.behaviour[name] + 0.994 * last.weights[name]
        assert torch.allclose(value, expected, atol=1e-7)
    assert any(not torch.equal(v, last.weights[name]) for name, v in last.behaviour.items())
    assert final(undisturbed("single")).behaviour is None


def test_checkpoints_are_engine_neutral(undisturbed) -> None:
    """Checkpoints are engine-neutral: ZeRO-2 saves the names, shapes and values that DDP does."""
    saved = final(undisturbed("zero2-2")).optimizer
    plain = final(undisturbed("single")).optimizer
    assert saved.moments.keys() == plain.moments.keys()
    for name, moments in plain.moments.items():
        for kind, value in moments.items():
            assert torch.allclose(value, saved.moments[name][kind], atol=1e-6, rtol=1e-3)
