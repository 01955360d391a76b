"""What is said of an index of weights that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from atelier.config.facts.files import read_json, tensors_in
from atelier.errors import ConfigError
from atelier.export.base import safetensors_of
from atelier.model_files import read_weights
from atelier.weight_index import weight_files

INDEX = "model.safetensors.index.json"
OTHER = "other.safetensors.index.json"


def written(folder: Path, text: str) -> Path:
    save_file({"a": torch.zeros(2)}, folder / "one.safetensors")
    (folder / OTHER).write_text(json.dumps({"weight_map": {"a": INDEX}}))
    (folder / "within").mkdir()
    (folder / INDEX).write_text(text)
    return folder / INDEX


def test_its_files_are_those_beside_it(tmp_path: Path) -> None:
    index = written(tmp_path, json.dumps({"weight_map": {"a": "one.safetensors"}}))
    assert weight_files(index) == [index, tmp_path / "one.safetensors"]
    assert read_weights(index).keys() == {"a"}
    assert safetensors_of(tmp_path, "model.safetensors", "weights") == weight_files(index)[1:]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "within", "within/", "../x", "a\0", "\ud800", "x" * 300]
)
def test_what_is_no_file_beside_it_is_named(tmp_path: Path, name: str) -> None:
    index = written(tmp_path, json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ConfigError, match=r"index\.json: weight_map: 'a': there is no file"):
        read_weights(index)
    with pytest.raises(ConfigError, match="there is no file"):
        safetensors_of(tmp_path, "model.safetensors", "weights")


@pytest.mark.parametrize("name", [INDEX, OTHER])
def test_an_index_is_no_file_of_tensors(tmp_path: Path, name: str) -> None:
    index = written(tmp_path, json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ConfigError, match=r"weight_map: 'a': .* is an index itself"):
        read_weights(index)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "cannot be read as JSON"),
        (
            '{"weight_map": {"a": "one.safetensors", "a": "one.safetensors"}}',
            "'a' stands twice",
        ),
        ('{"weight_map": {}}', "names no tensor"),
        ('{"weight_map": {"a": 1}}', "expected the file of every tensor"),
    ],
)
def test_what_is_no_index_is_told(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"index\\.json: .*{says}"):
        read_weights(written(tmp_path, text))


def test_values_without_end_are_no_header(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    for header in (
        "[" * 100_000,
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e999]}}',
    ):
        file.write_bytes(len(header).to_bytes(8, "little") + header.encode())
        with pytest.raises(ConfigError, match="not a safetensors file"):
            tensors_in([file])
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        read_json(file)
