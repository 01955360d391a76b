"""Files of the model that a stage's result depends on."""

from pathlib import Path

from atelier.config.schema import RunConfig
from atelier.config.sections.deepgen import BasesConfig
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
