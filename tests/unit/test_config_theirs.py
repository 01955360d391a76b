"""What people bring along: names of other systems, and `~` for their home directory."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.paths import from_root
from atelier.config.resolve import resolve
from atelier.config.reward_names import SLOTS_PAGE
from atelier.config.theirs import COMPLETIONS_PAGE, JANUS_PAGE, MM_GRPO_PAGE
from atelier.errors import ConfigError


def refused(override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve("tiny/flow-grpo-fast", [override], Path(os.devnull))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((one, ("below rewards.custom", SLOTS_PAGE)) for one in ("aesthetics", "imagereward")),
        *((one, ("below rewards.custom", SLOTS_PAGE)) for one in ("ImageReward", "hps_v2.1")),
        *((one, ("below rewards.custom", SLOTS_PAGE)) for one in ("HPSv2", "aesthetic_score")),
        ("clip_score", ("did you mean rewards.clip_similarity?",)),
        ("pickscore", ("did you mean rewards.pick_score?",)),
        ("deadlne", ("did you mean rewards.deadline?",)),
        (
            "beauty",
            (
                "rewards holds clip_similarity, complex_edit, custom, ",
                "yes_no; custom is",
                SLOTS_PAGE,
            ),
        ),
        ("group_size", ("did you mean rollout.group_size?",)),
    ],
)
def test_a_reward_that_there_is_not_is_told_which_there_are(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f'rewards:\n  "{name.replace(".", "")}": {{weight: 1}}\n')
    with pytest.raises(ConfigError) as caught:
        resolve("tiny/flow-grpo-fast", (), file)
    said = str(caught.value)
    assert all(one in said for one in words), said
    assert said.count("did you mean") == sum("did you mean" in one for one in words)


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.rollout.n=24",
        "algorithm.adv_estimator=flow_grpo",
        "data.train_files=train.txt",
        "trainer.total_epochs=3",
        "reward_model.enable=true",
    ],
)
def test_their_keys_are_led_to_the_page(override: str) -> None:
    assert f"{MM_GRPO_PAGE} says what it is here" in refused(override)


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("algorithm.name=flow_grpo_fast", "grpo with rollout.window.strategy: fast"),
        ("rollout.dynamics=sde", "flow_sde"),
        ("data.source=ocr", "ocr_text"),
    ],
)
def test_their_values_are_told_ours(override: str, ours: str) -> None:
    assert f"; did you mean {ours}? ({MM_GRPO_PAGE})" in refused(override)


@pytest.mark.parametrize("name", ["qwen_image", "qwen2_5_vl"])
def test_a_model_s_own_name_leads_to_its_family(name: str) -> None:
    assert f"; did you mean qwen? ({COMPLETIONS_PAGE})" in refused(f"policy.family={name}")


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("num_generations=8", "rollout.group_size"),
        ("train.num_generations=8", "rollout.group_size"),
        ("set_epsilon=true", "algorithm.clip_range"),
        ("internvl_tp=26b", "judges.internvl.model and judges.internvl.placement"),
        ("guidance_scale=5.0", "rollout.guidance_scale"),
        ("paired_data_path=pairs.json", "data.path and data.source"),
        ("algorithm.name=pair_grpo", "grpo with algorithm.advantage_over: pair"),
    ],
)
def test_names_of_focusdiff_and_janus_pro_r1_are_told_ours(override: str, ours: str) -> None:
    assert f"; did you mean {ours}? ({JANUS_PAGE})" in refused(override)


def test_a_key_of_theirs_without_a_counterpart_is_told_so() -> None:
    for override in ("use_vllm=false", "train.reverse=true", "rollout.addselft2i=true"):
        assert f"no counterpart: {JANUS_PAGE} says why" in refused(override)


def test_their_whole_recipe_is_answered_line_by_line(tmp_path: Path) -> None:
    recipe = tmp_path / "params.yaml"
    recipe.write_text("num_generations: 7\nuse_vllm: false\nreport_to:\n- none\n")
    with pytest.raises(ConfigError) as caught:
        resolve("janus-pro-7b/grpo", [], recipe)
    _, *lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for number, line in enumerate(lines, start=1):
        assert f"params.yaml:{number}: " in line
        assert JANUS_PAGE in line


def test_other_mistakes_are_not_theirs() -> None:
    mistakes = ("rollout.dynamics=sdd", "rollout.groupsize=3", "data.pat=x", "train.n=1")
    for override in (*mistakes, "train.beta=0.1", "data.seeds=1", "judges.x.model_path=y"):
        assert "coming-from" not in refused(override)


def test_the_home_directory_is_meant_by_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/people/someone")
    settings = ["data.path=~/signs.txt", "data.heldout_path=~/test.txt", "policy.path=~/model"]
    config = resolve("tiny/flow-grpo-fast", settings, Path(os.devnull))
    assert config.data.path == "/people/someone/signs.txt"
    assert config.data.heldout_path == "/people/someone/test.txt"
    assert config.policy.path == "/people/someone/model"
    assert from_root("~/runs") == Path("/people/someone/runs")
    assert from_root("runs/~") == from_root("runs") / "~"


def test_an_option_s_path_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments = ["stage", "resolve", "--run=~/run", "--recipe", "tiny/flow-grpo-fast"]
    result = CliRunner().invoke(application, [*arguments, "--params", os.devnull])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run/config/train.yaml").is_file()
