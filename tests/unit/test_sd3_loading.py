"""Opening a Stable Diffusion 3 pipeline: nothing of it is made up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atelier.config.sections.policy import PolicyConfig
from atelier.errors import ConfigError
from atelier.policies.sd3.loading import load_image_parts, load_text_encoders
from tests.support.runs import untrained_pipeline

PARTS = {"transformer": "bias", "vae": "bias", "text_encoder": "weight", "text_encoder_3": "weight"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(untrained_pipeline(), tmp_path / "pipeline"))


def load(folder: Path, part: str) -> None:
    policy = PolicyConfig(path=str(folder))
    if part.startswith("text"):
        load_text_encoders(folder, policy, torch.device("cpu"))
    else:
        load_image_parts(folder, policy)


@pytest.mark.parametrize("part", PARTS)
def test_a_weight_that_is_not_there_is_named(folder: Path, part: str) -> None:
    load(folder, part)
    (file,) = (folder / part).glob("*.safetensors")
    weights = load_file(file)
    name = next(one for one in reversed(weights) if one.endswith(PARTS[part]))
    del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"{part}: 1 of the model's weights .* {name}"):
        load(folder, part)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("pattern", ["*.safetensors", "config.json"])
def test_a_damaged_part_says_which_pipeline(folder: Path, part: str, pattern: str) -> None:
    (file,) = (folder / part).glob(pattern)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"policy\.path: .*pipeline' is not a Stable Diffusion 3"):
        load(folder, part)


@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
def test_a_part_that_is_not_there_says_which_pipeline(folder: Path, part: str) -> None:
    shutil.rmtree(folder / part)
    with pytest.raises(ConfigError, match=r"policy\.path: .*pipeline' is not a Stable Diffusion 3"):
        load(folder, part)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda value: value.fill_(torch.nan), "has values that are no numbers"),
        (lambda value: value.to(torch.int8), "is stored as I8"),
    ],
)
@pytest.mark.parametrize("part", PARTS)
def test_a_weight_that_is_none_is_named(
    folder: Path, part: str, damage: Callable[[torch.Tensor], torch.Tensor], said: str
) -> None:
    (file,) = (folder / part).glob("*.safetensors")
    weights = load_file(file)
    name = next(one for one in weights if one.endswith(PARTS[part]))
    weights[name] = damage(weights[name])
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"{part}.*: {name} {said}"):
        load(folder, part)


@pytest.mark.parametrize("part", PARTS)
def test_a_weight_that_is_not_used_is_named(
    folder: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = (folder / part).glob("*.safetensors")
    weights = {**load_file(file), "value_head.weight": torch.ones(2)}
    save_file(weights, file, metadata={"format": "pt"})
    load(folder, part)
    assert f"{part}: 1 weights of its files are not used, such as value_head" in caplog.text
