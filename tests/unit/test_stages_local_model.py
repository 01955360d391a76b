"""Files of the model that a stage's result depends on."""

from pathlib import Path

from atelier.config.schema import RunConfig
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
