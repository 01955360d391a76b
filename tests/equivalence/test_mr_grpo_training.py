"""What must not change a run of MR-GRPO: two rewards by GDPO, a fraction of the steps, a KL, and a
supervised loss on rendered scenes."""

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
from tests.support.runs import make_run, metrics, untrained_pipeline

pytestmark = pytest.mark.slow

MR_GRPO = (
    "rewards.jpeg_compressibility.weight=0.7",
    "rewards.custom.grey={function: 'tests.support.grey:greyness', weight: 0.3}",
    "algorithm.advantage_from=gdpo",
    "algorithm.advantage_ddof=1",
    "algorithm.beta=0.001",
    "algorithm.kl=scaled_velocity",
    "rollout.noise_level=1.0",
    "rollout.num_inference_steps=6",
    "rollout.window={strategy: fraction, fraction: 0.5}",
    "data.sft={source: scenes, scenes: 40}",
    "train.sft={coefficient: 0.3, pictures_per_update: 16}",
    "train.updates_per_step=1",
    "train.schedule={kind: constant_with_warmup, warm_up_updates: 2}",
    # As in test_training.py: an update that is proportional to the gradient.
    "train.adam_epsilon=1e-3",
)
DEEPSPEED = "launch.engine=deepspeed"
SETTINGS = {
    "single": (1, ()),
    "ddp-2": (2, ()),
    "zero2-2": (2, (DEEPSPEED, "launch.zero_stage=2")),
    "zero3-2": (2, (DEEPSPEED, "launch.zero_stage=3")),
    "ahead": (1, ("train.one_step_off=true", "train.in_flight=store")),
    "rewards-alone": (1, ("train.sft.coefficient=0",)),
}


def make(folder: Path, setting: str) -> tuple[RunDirectory, int]:
    processes, overrides = SETTINGS[setting]
    return make_run(folder, (*MR_GRPO, *overrides)), processes


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory: pytest.TempPathFactory):
    return undisturbed_runs(make, tmp_path_factory)


@pytest.mark.parametrize("setting", ["ddp-2", "zero2-2", "zero3-2"])
def test_ranks_and_engines_give_the_same_weights(undisturbed, setting: str) -> None:
    one, other = final(undisturbed("single")), final(undisturbed(setting))
    untrained = load_file(
        untrained_pipeline() / "transformer" / "diffusion_pytorch_model.safetensors"
    )
    moved = largest(value - untrained[name] for name, value in one.weights.items())
    differ = largest(value - one.weights[name] for name, value in other.weights.items())
    assert moved > 0
    assert differ <= min(1e-5, moved / 20), f"weights moved {moved} and differ by {differ}"
    losses = [
        [row["loss/sft"] for row in metrics(undisturbed(name))] for name in ("single", setting)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("setting", ["single", "ddp-2", "ahead"])
def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path: Path, setting: str) -> None:
    require_a_kill_changes_nothing(make, tmp_path, setting, undisturbed(setting))


def test_an_update_a_step_however_much_is_added_up(undisturbed) -> None:
    """Each adds up 12 forward passes over rollouts and 2 over pictures; the warm-up counts such
    updates, and so does the average."""
    whole = undisturbed("single")
    last = final(whole)
    assert last.state.updates == last.optimizer.updates == 3
    rates = [row["learning_rate"] for row in metrics(whole)]
    assert rates == pytest.approx([0, 2e-5, 4e-5])
    assert last.ema is not None
    assert last.ema.keys() == last.weights.keys()


def test_every_term_of_the_loss_is_there_and_pictures_change_what_is_learned(undisturbed) -> None:
    both, alone = metrics(undisturbed("single")), metrics(undisturbed("rewards-alone"))
    assert all(row["loss/sft"] > 0 for row in both)
    assert all("loss/sft" not in row for row in alone)
    assert both[-1]["kl"] > 0
    assert {f"reward/{name}/advantage_share" for name in ("grey", "jpeg_compressibility")} <= set(
        both[0]
    )
    trained, without = final(undisturbed("single")), final(undisturbed("rewards-alone"))
    assert largest(value - without.weights[name] for name, value in trained.weights.items()) > 0
