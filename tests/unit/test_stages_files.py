import pytest

from atelier.stages import files


@pytest.fixture
def model(tmp_path):
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae/weights.safetensors").write_bytes(b"weights")
    (tmp_path / "model_index.json").write_text("{}")
    return tmp_path


def test_a_model_is_what_is_loaded_of_it(model):
    before = files.identity_of(model)
    (model / "README.md").write_text("a card")
    (model / "samples.png").write_bytes(b"picture")
    assert files.identity_of(model) == before


@pytest.mark.parametrize("name", ["vae/weights.safetensors", "model_index.json", "new.json"])
def test_any_other_change_is_another_model(model, name):
    before = files.identity_of(model)
    (model / name).write_text("changed")
    assert files.identity_of(model) != before


def test_a_renamed_file_is_another_model(model):
    before = files.identity_of(model)
    (model / "vae/weights.safetensors").rename(model / "vae/other.safetensors")
    assert files.identity_of(model) != before


def test_huge_files_are_identified_by_size(model, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_HASHED_BYTES", 3)
    before = files.identity_of(model)
    (model / "vae/weights.safetensors").write_bytes(b"WEIGHTS")
    assert files.identity_of(model) == before
    (model / "vae/weights.safetensors").write_bytes(b"more weights")
    assert files.identity_of(model) != before
