"""Digests and the resolved file of each stage."""

import os
from pathlib import Path

import pytest

from atelier.config.digest import SHAPED_BY, digest, stage_digest
from atelier.config.resolve import load_stage_config, resolve, write_stage_configs
from atelier.config.schema import RunConfig
from atelier.config.yaml_files import read_yaml
from atelier.errors import ConfigError
from atelier.tracking.run_directory import STAGES, RunDirectory


def configured(recipe: str, *overrides: str) -> RunConfig:
    """Without the repository's params.yaml, which is the user's."""
    return resolve(recipe, overrides, Path(os.devnull))


def changed_stages(override: str) -> set[str]:
    """Stages whose digest one override changes."""
    before, after = configured("tiny/base"), configured("tiny/base", override)
    return {stage for stage in STAGES if stage_digest(before, stage) != stage_digest(after, stage)}


def test_every_stage_has_a_shape() -> None:
    assert set(SHAPED_BY) == set(STAGES)


def test_digest_is_sha256_of_canonical_json() -> None:
    # printf '{"a":[1,2.5],"b":null}' | sha256sum
    expected = "f66b2c50ccae61e3f2445d2439f42efc245581b18ed184ce5d3c22fb58eed9c4"
    assert digest({"b": None, "a": (1, 2.5)}) == digest({"a": [1, 2.5], "b": None}) == expected
    with pytest.raises(ValueError, match="JSON compliant"):
        digest(float("nan"))


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("data.seed=9", {*STAGES}),
        ("policy.path=org/model", {*STAGES} - {"prepare"}),
        ("train.learning_rate=1e-3", {"train", "evaluate", "export", "report"}),
        ("launch.threads=1", {"train", "evaluate", "export", "report"}),
        ("launch.processes=2", set()),
        ("rewards.ocr.weight=2.0", {"train", "evaluate", "export", "report"}),
        ("rewards.ocr.placement=managed", set()),
        ("rewards.ocr.workers=3", set()),
        ("rewards.deadline=9.0", set()),
        ("evaluation.ocr.workers=3", set()),
        ("evaluation.periodic_prompts=8", {*STAGES} - {"prepare"}),
        ("evaluation.completions=none", {*STAGES} - {"prepare"}),
        ("evaluation.prompts=9", {"baseline", "evaluate", "report"}),
        ("rollout.group_size=4", {"train", "evaluate", "export", "report"}),
        # What evaluated images are painted from: before and after would be of other policies.
        ("rollout.kind=edit", {*STAGES} - {"prepare"}),
        ("rollout.tokens.temperature=0.5", {*STAGES} - {"prepare"}),
        ("rollout.editing.wish=' Draw it.'", {*STAGES} - {"prepare"}),
        ("rollout.introspection.answer_tokens=9", {*STAGES} - {"prepare"}),
        ("rollout.completion.max_tokens=9", {*STAGES} - {"prepare"}),
        ("rollout.conditioning.template=planning", {*STAGES} - {"prepare"}),
        ("rollout.environment.preset=released", {*STAGES} - {"prepare"}),
        ("export.weights=raw", {"evaluate", "export", "report"}),
        ("evaluation.bootstrap_samples=10", {"baseline", "evaluate", "report"}),
        ("export.dtype=bfloat16", {"export", "report"}),
        ("tracking.experiment=other", set()),
    ],
)
def test_a_key_changes_the_digests_of_the_stages_it_shapes(override: str, stages: set[str]) -> None:
    assert changed_stages(override) == stages


def test_how_many_ranks_there_are_shapes_training_where_each_draws_its_window() -> None:
    one, two = (
        configured("tiny/base", "rollout.window.scope=rank", f"launch.processes={ranks}")
        for ranks in (1, 2)
    )
    changed = {stage for stage in STAGES if stage_digest(one, stage) != stage_digest(two, stage)}
    assert changed == {*STAGES} - {"prepare", "baseline"}


def test_the_name_of_a_recipe_does_not_shape_anything(tmp_path: Path) -> None:
    alias = tmp_path / "alias.yaml"
    alias.write_text("inherits: tiny/base\n")
    for stage in STAGES:
        assert stage_digest(configured(str(alias)), stage) == stage_digest(
            configured("tiny/base"), stage
        )


def test_a_stage_reads_back_what_was_resolved(tmp_path: Path) -> None:
    config = configured(
        "tiny/h100", "tracking.run_name='1e5'", "data.path='no'", "rewards.ocr=null"
    )
    run = RunDirectory(tmp_path)

    digests = write_stage_configs(config, run)

    for stage in STAGES:
        assert load_stage_config(run.config(stage)) == config
        assert read_yaml(run.config(stage)).values["digest"] == digests[stage]
    assert digests == write_stage_configs(config, run)


def test_a_stage_file_edited_by_hand_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_stage_configs(configured("tiny/base"), run)
    path = run.config("train")

    path.write_text(path.read_text().replace("seed: 1\n", "seed: 2\n"))
    with pytest.raises(ConfigError, match="changed since it was resolved"):
        load_stage_config(path)

    path.write_text(path.read_text().replace("seed: 2\n", "seeed: 2\n"))
    with pytest.raises(ConfigError, match=r"train\.yaml:\d+: train\.seeed: unknown key; did you"):
        load_stage_config(path)


@pytest.mark.parametrize("text", ["", "stage: train\n", "stage: x\ndigest: y\nconfig: {}\n"])
def test_another_file_is_no_stage_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"train\.yaml"):
        load_stage_config(path)


def test_a_file_copied_over_another_stages_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_stage_configs(configured("tiny/base"), run)
    run.config("train").write_bytes(run.config("baseline").read_bytes())
    with pytest.raises(ConfigError, match="file of stage baseline, copied over that of train"):
        load_stage_config(run.config("train"))


def test_ranks_that_draw_windows_of_their_own_shape_a_run() -> None:
    """Elsewhere their number is how a run is made; here it decides what is trained."""

    def digests(scope: str) -> set[str]:
        wanted = [f"rollout.window.scope={scope}"]
        configs = (resolve(None, [*wanted, f"launch.processes={ranks}"]) for ranks in (1, 2))
        return {stage_digest(config, "train") for config in configs}

    assert len(digests("rank")) == 2
    assert len(digests("group")) == 1
