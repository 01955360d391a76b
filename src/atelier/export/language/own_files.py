"""What belongs to a model's directory beside its weights, and what of it has to be put right.

Files are copied as they are. config.json says how the weights are loaded, and is rewritten where an
export would come out wrong by it: the dtype that a plain load takes, and whether the text head
shares the embedding.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from atelier.export.manifest import MANIFEST
from atelier.policies.pretraining.snapshots import RECORD, SAMPLES

WEIGHTS = {".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx"}
TEMPLATES = "additional_chat_templates"  # the one folder that processors read
DTYPES = ("dtype", "torch_dtype")
OF_ONE_MODEL = {RECORD, SAMPLES}  # how it was trained and what it draws: true of no other


def own_files(directory: Path) -> Iterator[Path]:
    """Files of a model directory, without weights in any format, hidden files, what is told of that
    one model, and the manifest of an export, where the directory is one."""
    folders = (directory, directory / TEMPLATES)
    for file in sorted(file for folder in folders for file in folder.glob("*")):
        is_weights = file.suffix in WEIGHTS or file.name.endswith(".index.json")
        is_no_part = file.name in {MANIFEST, *OF_ONE_MODEL} or file.name.startswith(".")
        if file.is_file() and not (is_weights or is_no_part):
            yield file


def copy_own_files(directory: Path, target: Path) -> None:
    """Copy them byte for byte, to the same places."""
    for file in own_files(directory):
        copy = target / file.relative_to(directory)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def write_config(file: Path, config: Mapping[str, Any], dtype: torch.dtype, tied: bool) -> None:
    """Rewrite config.json unless a plain load does right by it.

    Args:
        dtype: of the weights: transformers loads in the one the configuration names.
        tied: whether the text head shares the embedding's weights.
    """
    right = _with_dtype(config, str(dtype).removeprefix("torch."))
    if not tied:
        right["tie_word_embeddings"] = False
    if right != config:
        file.write_text(json.dumps(right, indent=2) + "\n", encoding="utf-8")


def _with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The configuration and those inside it, with another dtype where one is named."""
    return {
        key: _with_dtype(value, dtype)
        if isinstance(value, dict)
        else dtype
        if key in DTYPES and value is not None
        else value
        for key, value in config.items()
    }
