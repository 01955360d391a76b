"""What a later layer covers is still checked, and what a plan can know of the model it refuses."""

from pathlib import Path

import pytest

from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.errors import ConfigError, PlanError

DEMO = "tiny/flow-grpo-lora"


def test_a_value_in_place_of_a_section_is_refused_even_when_params_cover_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("\ntrain: [1]\n")
    (tmp_path / "params.yaml").write_text("train: {steps: 3}\n")
    with pytest.raises(ConfigError, match=r"recipe\.yaml:2: train: must be a section"):
        resolve(str(tmp_path / "recipe.yaml"), (), tmp_path / "params.yaml")


def test_a_section_that_is_null_may_be_filled(tmp_path: Path) -> None:
    config = resolve(DEMO, ["rewards.ocr=null", "rewards.ocr.weight=2"])
    assert config.rewards.ocr is not None
    assert config.rewards.ocr.weight == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train: &a {}\n", "anchors and aliases"),
        ("train: !!python/object:os.system {}\n", "the tag .*os.system is not used"),
        ("train: {adam_betas: [0.9, 1]}\n", "adam_betas.1: 1 must be less than 1"),
        ("export: {formats: []}\n", "export.formats: .*at least one"),
        ("export: {formats: [merged, merged]}\n", "export.formats: .*once"),
    ],
)
def test_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"recipe\.yaml:1: .*{says}"):
        resolve(str(tmp_path / "recipe.yaml"))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("policy.path=/no/such/model", "policy.path: /no/such/model is neither"),
        ("policy.path=README.md", "policy.path: README.md is neither"),
        (f"policy.path={'x' * 400}/y z", "policy.path: x+/y z is neither"),
        ("policy.lora.target_modules=[nope]", "target_modules: nope names no linear layer"),
        ("data.path=" + "x" * 400, "data.path: there is no file"),
    ],
)
def test_plan_refuses(override: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan(resolve(DEMO, [override]))
