"""Files of the model that a stage's result depends on."""

import json
from pathlib import Path

import pytest

from atelier.config.schema import RunConfig
from atelier.config.sections.deepgen import BasesConfig
from atelier.errors import ConfigError
from atelier.stages.baseline import local_model


def config(**policy: str) -> RunConfig:
    return RunConfig.model_validate({"policy": {"family": "janus", **policy}})


def test_a_directory_a_file_of_weights_with_its_layout_or_nothing_of_the_hub(
    tmp_path: Path,
) -> None:
    folder, file = tmp_path / "model", tmp_path / "start.pth"
    folder.mkdir()
    file.write_bytes(b"weights")
    assert local_model(config(path=str(folder))) == [folder]
    assert local_model(config(path=str(file), layout=str(folder))) == [file, folder]
    assert local_model(config(path=str(file), layout="some/model")) == [file]
    assert local_model(config(path="some/model")) == []


def test_an_index_with_the_files_that_hold_its_weights(tmp_path: Path) -> None:
    """It says the same whatever these hold: a stage that is done is done with them."""
    index = tmp_path / "model.safetensors.index.json"
    shards = [tmp_path / f"model-{number}.safetensors" for number in (1, 2)]
    for shard in shards:
        shard.write_bytes(b"weights")
    places = {"a": shards[1].name, "b": shards[0].name, "c": shards[1].name}
    index.write_text(json.dumps({"weight_map": places}))
    assert local_model(config(path=str(index))) == [index, *shards]
    shards[0].unlink()
    with pytest.raises(ConfigError, match=r"there is no file model-1\.safetensors beside it"):
        local_model(config(path=str(index)))


def test_what_a_file_of_weights_was_trained_from(tmp_path: Path) -> None:
    """And the adapter that images of a completion are made with."""
    names = ("start.pth", "sft.pt", "lightning.safetensors")
    files = [tmp_path / name for name in names]
    for file in files:
        file.write_bytes(b"weights")
    vlm = tmp_path / "vlm"
    vlm.mkdir()
    bases = {"vlm": str(vlm), "pipeline": "some/pipeline", "sft": str(files[1])}
    made = config(path=str(files[0]))
    policy = made.policy.model_copy(update={"bases": BasesConfig(**bases)})
    environment = made.rollout.environment.model_copy(update={"adapter": str(files[2])})
    rollout = made.rollout.model_copy(update={"environment": environment})
    found = local_model(made.model_copy(update={"policy": policy, "rollout": rollout}))
    assert found == [files[0], vlm, *files[1:]]
