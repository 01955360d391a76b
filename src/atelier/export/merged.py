"""Format `merged`: the base's own `from_pretrained` directory with the trained transformer.

The transformer's weight files keep their names, shards and keys; every other file of the pipeline
is copied byte for byte. Weights are merged in float32, whatever dtype the base is stored in, and
rounded once to the dtype they are saved in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from atelier.config.schema import LoraConfig
from atelier.errors import CheckpointError
from atelier.export.base import INDEX, MODEL_INDEX, TRANSFORMER, BasePipeline
from atelier.export.clean_process import lines_digest, tensor_line
from atelier.export.lora import lora_pairs, lora_update
from atelier.export.record import WrittenWeights
from atelier.export.survival import UpdateSurvival

Merge = Callable[[torch.Tensor], torch.Tensor]
TOP_LEVEL_FILES = ("LICENSE*", "LICENCE*", "NOTICE*")


def export_merged(
    base: BasePipeline,
    tensors: Mapping[str, torch.Tensor],
    lora: LoraConfig | None,
    dtype: torch.dtype,
    directory: Path,
) -> WrittenWeights:
    """Write the whole pipeline with `tensors` merged into its transformer.

    Args:
        base: the pipeline trained from.
        tensors: float32; with `lora` its peft parameters, else transformer parameters by name.
        lora: settings of the adapter, None where parameters were trained in full.
        dtype: dtype of the transformer's weights on disk.
        directory: an existing empty directory to write into.

    Returns:
        What was written, with the survival of the update (survival.py).

    Raises:
        CheckpointError: the tensors do not belong to this base, are not finite, or change nothing.
    """
    merges = _lora_merges(base, tensors, lora) if lora else _full_merges(base, tensors)
    _copy_other_files(base, directory)
    survival, lines = UpdateSurvival(), []
    for file in base.weight_files():
        shard = {}
        for name, stored in base.tensors(file):
            value = stored.float() if stored.is_floating_point() else stored
            if merge := merges.get(name):
                merged = merge(value)
                _require_finite(name, merged.to(dtype), dtype)
                survival.add(value, merged, dtype)
                value = merged
            shard[name] = value.to(dtype) if value.is_floating_point() else value
            lines.append(tensor_line(name, shard[name]))
        save_file(shard, directory / TRANSFORMER / file.name, metadata={"format": "pt"})
    _write_index(base, directory, dtype)
    if survival.update == 0:
        raise CheckpointError("the trained tensors equal the base's: there is nothing to export")
    return WrittenWeights(len(lines), lines_digest(lines), [], survival.share, survival.changed)


def _full_merges(base: BasePipeline, tensors: Mapping[str, torch.Tensor]) -> dict[str, Merge]:
    """Each trained tensor stands for the base's of the same name."""
    shapes = base.tensor_shapes()
    if not tensors:
        raise CheckpointError("no trained tensors: there is nothing to export")
    for name, tensor in tensors.items():
        if shapes.get(name) != tuple(tensor.shape):
            raise CheckpointError(
                f"trained tensor {name} has shape {tuple(tensor.shape)}, in the base it has "
                f"{shapes.get(name, 'no counterpart')}: the checkpoint is of another base"
            )
    return {name: _replace_by(tensor.float()) for name, tensor in tensors.items()}


def _replace_by(trained: torch.Tensor) -> Merge:
    return lambda _: trained


def _lora_merges(
    base: BasePipeline, tensors: Mapping[str, torch.Tensor], lora: LoraConfig
) -> dict[str, Merge]:
    """Each adapted weight gets alpha / rank * B A added."""
    pairs = lora_pairs(tensors, lora, base.tensor_shapes())
    return {f"{module}.weight": _add(lora_update(pair, lora)) for module, pair in pairs.items()}


def _add(update: torch.Tensor) -> Merge:
    return lambda weight: weight + update


def _require_finite(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if not torch.isfinite(tensor).all():
        raise CheckpointError(
            f"trained tensor {name} has values that are not finite in {dtype}: training diverged, "
            "or export.dtype is too narrow"
        )


def _copy_other_files(base: BasePipeline, directory: Path) -> None:
    """Everything `from_pretrained` reads but the transformer's weights, and the licence."""
    weights = set(base.weight_files())
    for component in base.components():
        shutil.copytree(
            base.directory / component,
            directory / component,
            ignore=lambda folder, names: [n for n in names if Path(folder, n) in weights],
        )
    shutil.copyfile(base.directory / MODEL_INDEX, directory / MODEL_INDEX)
    for pattern in TOP_LEVEL_FILES:
        for file in base.directory.glob(pattern):
            shutil.copyfile(file, directory / file.name)
    if (card := base.directory / "README.md").exists():
        shutil.copyfile(card, directory / "BASE_README.md")


def _write_index(base: BasePipeline, directory: Path, dtype: torch.dtype) -> None:
    """The shard index as it was, with the size the shards have now."""
    source = base.transformer / INDEX
    if not source.exists():
        return
    index = json.loads(source.read_text(encoding="utf-8"))
    shapes = base.tensor_shapes()
    total = sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize
    index["metadata"] = {**index.get("metadata", {}), "total_size": total}
    (directory / TRANSFORMER / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
