"""What must not change a training run of a policy that writes: ranks, a kill; and that what it ends
with can be exported."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from transformers import Qwen2_5_VLForConditionalGeneration

from atelier.config.resolve import load_stage_config
from atelier.export.run import export_run
from atelier.tracking.run_directory import RunDirectory
from tests.support.finished_runs import assert_equal, final, kill_after_a_step, largest
from tests.support.random_qwen import Kind
from tests.support.runs import make_qwen_run, metrics, random_qwen_pipeline, train

pytestmark = pytest.mark.slow

PROPORTIONAL = "train.adam_epsilon=1e-3"
AHEAD = ("train.one_step_off=true", "train.in_flight=store")
ADAPTER = ("policy.trainable=lora", "policy.lora={rank: 4, alpha: 8}")
SETTINGS: dict[str, tuple[Kind, int, tuple[str, ...]]] = {
    "draw": ("text", 1, ()),
    "draw-2": ("text", 2, ()),
    "edit-ahead": ("edit", 1, (*AHEAD, *ADAPTER, "rollout.guidance_scale=2")),
}


def make(folder: Path, setting: str) -> tuple[RunDirectory, int]:
    kind, processes, overrides = SETTINGS[setting]
    return make_qwen_run(folder, kind, (*overrides, PROPORTIONAL)), processes


@pytest.fixture(scope="module", name="undisturbed")
def _undisturbed(tmp_path_factory: pytest.TempPathFactory):
    """A finished run of a setting, trained once for all tests that look at it."""

    @functools.cache
    def finished(setting: str) -> RunDirectory:
        run, processes = make(tmp_path_factory.mktemp(setting), setting)
        train(run, processes)
        return run

    return finished


def test_two_ranks_give_the_weights_of_one(undisturbed) -> None:
    one, other = final(undisturbed("draw")), final(undisturbed("draw-2"))
    folder = random_qwen_pipeline("text") / "text_encoder"
    untrained = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).state_dict()
    names = {name: name.removeprefix("encoder.") for name in one.weights}
    moved = largest(one.weights[name] - untrained[bare] for name, bare in names.items())
    differ = largest(value - one.weights[name] for name, value in other.weights.items())
    assert one.weights.keys() == other.weights.keys()
    assert moved > 0
    assert differ <= min(2e-5, moved / 20), f"weights moved {moved} and differ by {differ}"


@pytest.mark.parametrize("setting", ["draw", "edit-ahead"])
def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path: Path, setting: str) -> None:
    whole = undisturbed(setting)
    killed, processes = make(tmp_path, setting)
    kill_after_a_step(killed, processes)
    train(killed, processes)
    assert_equal(final(whole), final(killed))
    assert metrics(whole) == metrics(killed)


@pytest.mark.parametrize(("setting", "kind"), [("draw", "merged"), ("edit-ahead", "adapter")])
def test_a_finished_run_ends_with_a_proven_export(undisturbed, setting: str, kind: str) -> None:
    """Its moving average, in a clean process."""
    run = undisturbed(setting)
    config = load_stage_config(run.config("export"))
    export = config.export.model_copy(update={"formats": [kind], "verify_prompts": 2})
    (found,) = export_run(run, config.model_copy(update={"export": export})).published
    assert found.directory == run.export / kind
    assert found.record.effect.max > 0
    assert found.record.greedy_equal == 1
