"""What must not change a training run of DeepGen: ranks, engines, a kill; and that what it ends
with can be exported, and fine-tuned from."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal

import pytest
import torch

from atelier.config.resolve import load_stage_config
from atelier.config.sections.policy import PolicyConfig
from atelier.export.deepgen.base import BaseDeepGen
from atelier.export.deepgen.family import FAMILY
from atelier.export.deepgen.sft import laid_onto, named_weights
from atelier.export.merged import export_merged
from atelier.export.run import export_run
from atelier.policies.deepgen.policy import DeepGenPolicy
from atelier.policies.deepgen.source import open_source
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import latest_checkpoint, read_weights
from tests.support.deepgen_exports import sft_state
from tests.support.finished_runs import assert_equal, final, kill_after_a_step, largest
from tests.support.runs import make_run, metrics, random_deepgen_model, train

pytestmark = pytest.mark.slow

# Long and short words, so that micro-batches have padding.
OWN = ("policy.family=deepgen", "algorithm.beta=0.001", "algorithm.kl=velocity")
PROPORTIONAL = "train.adam_epsilon=1e-3"
PICTURES = (
    "data.sft={source: scenes, scenes: 40}",
    "train.sft={coefficient: 0.3, pictures_per_update: 16}",
)
CONNECTOR = ("policy.trainable=dit_connector", "rollout.guidance_scale=2")
ZERO2 = ("launch.engine=deepspeed", "launch.zero_stage=2")
ZERO3 = ("launch.engine=deepspeed", "launch.zero_stage=3")
ADAPTER = ("policy.trainable=lora", "policy.lora={rank: 4, alpha: 8}", "train.one_step_off=true")
SETTINGS: dict[str, tuple[int, tuple[str, ...]]] = {
    "dit": (1, PICTURES),
    "dit-2": (2, PICTURES),
    "dit-zero2-2": (2, (*PICTURES, *ZERO2)),
    "dit-zero3-2": (2, (*PICTURES, *ZERO3)),
    "connector": (1, CONNECTOR),
    "connector-2": (2, CONNECTOR),
    "connector-zero3-2": (2, (*CONNECTOR, *ZERO3)),
    "adapter-ahead": (1, (*ADAPTER, "train.in_flight=store")),
}


def make(folder: Path, setting: str) -> tuple[RunDirectory, int]:
    processes, overrides = SETTINGS[setting]
    path = f"policy.path={random_deepgen_model()}"
    return make_run(folder, (path, *OWN, PROPORTIONAL, *overrides)), processes


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """A finished run of a setting, trained once for all tests that look at it."""

    @functools.cache
    def finished(setting: str) -> RunDirectory:
        run, processes = make(tmp_path_factory.mktemp(setting), setting)
        train(run, processes)
        return run

    return finished


@pytest.mark.parametrize(
    ("setting", "shared"),
    [
        ("dit", "dit-2"),
        ("dit", "dit-zero2-2"),
        ("dit", "dit-zero3-2"),
        ("connector", "connector-2"),
        ("connector", "connector-zero3-2"),
    ],
)
def test_ranks_and_engines_give_the_same_weights(undisturbed, setting: str, shared: str) -> None:
    """Of the transformer alone with captioned pictures, too."""
    one, other = final(undisturbed(setting)), final(undisturbed(shared))
    config = load_stage_config(undisturbed(setting).config("train"))
    untrained = DeepGenPolicy.load(config, "cpu").trainable()
    assert one.weights.keys() == other.weights.keys() == untrained.keys()
    moved = largest(one.weights[name] - value.detach() for name, value in untrained.items())
    differ = largest(value - one.weights[name] for name, value in other.weights.items())
    assert moved > 0
    assert differ <= min(2e-5, moved / 20), f"weights moved {moved} and differ by {differ}"


@pytest.mark.parametrize("setting", ["dit", "adapter-ahead"])
def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path: Path, setting: str) -> None:
    whole = undisturbed(setting)
    killed, processes = make(tmp_path, setting)
    kill_after_a_step(killed, processes)
    train(killed, processes)
    assert_equal(final(whole), final(killed))
    assert metrics(whole) == metrics(killed)


def test_a_finished_run_ends_with_a_proven_export(undisturbed) -> None:
    """Its moving average, in a clean process."""
    run = undisturbed("connector")
    config = load_stage_config(run.config("export"))
    export = config.export.model_copy(update={"formats": ["merged"], "verify_prompts": 2})
    (found,) = export_run(run, config.model_copy(update={"export": export})).published
    assert found.record.effect.max > 0


@pytest.mark.parametrize("kind", ["raw", "ema"])
@pytest.mark.parametrize("setting", ["dit-2", "dit-zero2-2", "connector-zero3-2", "adapter-ahead"])
def test_what_every_engine_saves_is_laid_onto_the_checkpoint_of_fine_tuning(
    undisturbed, tmp_path: Path, setting: str, kind: Literal["raw", "ema"]
) -> None:
    """And a policy that starts from there has these weights, and the checkpoint's other ones."""
    run = undisturbed(setting)
    config, base = load_stage_config(run.config("export")), random_deepgen_model()
    trained = read_weights(latest_checkpoint(run.checkpoints), kind)
    lora = config.policy.lora if config.policy.trainable == "lora" else None
    folder = tmp_path / "merged"
    folder.mkdir()
    tensors = FAMILY.base_names(trained)
    export_merged(BaseDeepGen.of(config), tensors, lora, torch.float32, folder)
    own = named_weights(folder)
    state = sft_state(base)
    rest = {name: value for name, value in state.items() if ".lmm." in name}
    laid = laid_onto("sft.pth", own, state).state
    assert laid.keys() == state.keys()
    assert all(torch.equal(laid[name], value) for name, value in rest.items())
    torch.save(laid, tmp_path / "again.pth")
    bases = {"vlm": f"{base}/vlm", "pipeline": str(base)}
    again = open_source(
        PolicyConfig(
            family="deepgen", path=f"{tmp_path}/again.pth", bases=bases, connector={"heads": 1}
        )
    )
    held = {
        f"transformer.{one}": it for one, it in again.transformer("float32").state_dict().items()
    }
    held |= again.bridge().state_dict()
    for name, value in own.items():
        assert torch.equal(held[name], value.bfloat16().float()), name
    before = named_weights(base)
    moved = {name for name, value in own.items() if not torch.equal(value, before[name])}
    pairs = {re.sub(r"\.lora_[AB]\.default", "", name) for name in tensors}
    # The last block's text goes nowhere, and a shift of all keys changes no attention.
    assert moved <= pairs
    assert len(moved) > len(pairs) / 2
