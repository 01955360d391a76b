"""What must not change a training run of DeepGen: ranks, a kill; and that what it ends with can be
exported."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from atelier.config.resolve import load_stage_config
from atelier.export.run import export_run
from atelier.policies.deepgen.policy import DeepGenPolicy
from atelier.tracking.run_directory import RunDirectory
from tests.support.finished_runs import assert_equal, final, kill_after_a_step, largest
from tests.support.runs import make_run, metrics, random_deepgen_model, train

# Long and short words, so that micro-batches have padding.
OWN = ("policy.family=deepgen", "algorithm.beta=0.001", "algorithm.kl=velocity")
PROPORTIONAL = "train.adam_epsilon=1e-3"
CONNECTOR = ("policy.trainable=dit_connector", "rollout.guidance_scale=2")
ADAPTER = ("policy.trainable=lora", "policy.lora={rank: 4, alpha: 8}", "train.one_step_off=true")
SETTINGS: dict[str, tuple[int, tuple[str, ...]]] = {
    "dit": (1, ()),
    "dit-2": (2, ()),
    "connector": (1, CONNECTOR),
    "connector-2": (2, CONNECTOR),
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


@pytest.mark.parametrize("setting", ["dit", "connector"])
def test_two_ranks_give_the_weights_of_one(undisturbed, setting: str) -> None:
    one, other = final(undisturbed(setting)), final(undisturbed(f"{setting}-2"))
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
