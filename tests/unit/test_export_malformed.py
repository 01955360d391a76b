"""LoRA metadata and records that are not what an export writes, refused with the file named."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from atelier.errors import CheckpointError, ConfigError
from atelier.export.record import read_record
from atelier.export.sd3.adapter import LORA_WEIGHTS, check_adapter
from atelier.export.verify import verify


@pytest.mark.parametrize(
    "metadata", ["{", "[]", '{"transformer.r": "4", "transformer.lora_alpha": "8"}', "{}"]
)
def test_adapter_metadata(tmp_path: Path, metadata: str) -> None:
    tensors = {"transformer.a.lora_A.weight": torch.zeros(1)}
    save_file(tensors, tmp_path / LORA_WEIGHTS, metadata={"lora_adapter_metadata": metadata})
    record = SimpleNamespace(weights=SimpleNamespace(tensors=1, scaling=[2.0]))
    with pytest.raises(CheckpointError, match=r"pytorch_lora_weights\.safetensors: metadata"):
        check_adapter(tmp_path, record)


@pytest.mark.parametrize("change", [{"base": 5}, {"format": "zip"}, {"weights": None}])
def test_record(tmp_path: Path, change: dict[str, object]) -> None:
    fields = {
        "format": "adapter",
        "dtype": "float32",
        "base": "assets/tiny-sd3",
        "base_is_local": True,
        "base_sha256": "0",
        "weights": {"tensors": 1, "digest": "0", "scaling": [2.0]},
        "effect": None,
        "difference": None,
    }
    path = tmp_path / "verification" / "record.json"
    path.parent.mkdir()
    path.write_text(json.dumps(fields))
    assert read_record(tmp_path).format == "adapter"
    path.write_text(json.dumps(fields | change))
    with pytest.raises(CheckpointError, match=r"record\.json: not an export's record"):
        read_record(tmp_path)


def test_an_empty_base_is_not_no_base(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not an empty text"):
        verify(tmp_path, base=" ")
