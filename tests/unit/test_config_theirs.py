"""What people bring along: names of MM-GRPO, and `~` for their home directory."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.paths import from_root
from atelier.config.resolve import resolve
from atelier.errors import ConfigError

PAGE = "docs/coming-from-mm-grpo.md"


def refused(override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve("tiny/flow-grpo-fast", [override], Path(os.devnull))
    return str(caught.value)


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
    assert f"{PAGE} says what it is here" in refused(override)


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("algorithm.name=flow_grpo_fast", "grpo with rollout.window.strategy: fast"),
        ("rollout.dynamics=sde", "flow_sde"),
        ("data.source=ocr", "ocr_text"),
    ],
)
def test_their_values_are_told_ours(override: str, ours: str) -> None:
    assert f"; did you mean {ours}? ({PAGE})" in refused(override)


def test_other_mistakes_are_not_theirs() -> None:
    for override in ("rollout.dynamics=sdd", "rollout.groupsize=3", "data.pat=x", "train.n=1"):
        assert PAGE not in refused(override)


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
