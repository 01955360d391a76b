"""Format `merged`: the base's own `from_pretrained` directory with the trained weights.

Weight files keep their names, shards and keys; what else belongs to the model is copied. Weights
are merged in float32, whatever dtype the base is stored in, and rounded once to the dtype they are
saved in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from atelier.config.sections.policy import LoraConfig
from atelier.errors import CheckpointError, ConfigError
from atelier.export.base import BaseModel
from atelier.export.clean_process.digests import lines_digest, tensor_line
from atelier.export.lora import LoraPair, lora_pairs, lora_update
from atelier.export.record import WrittenWeights
from atelier.export.survival import UpdateSurvival
from atelier.tracking.run_directory import read_json_object

Merge = Callable[[torch.Tensor], torch.Tensor]


def export_merged(
    base: BaseModel,
    tensors: Mapping[str, torch.Tensor],
    lora: LoraConfig | None,
    dtype: torch.dtype,
    directory: Path,
) -> WrittenWeights:
    """Write the whole model with `tensors` merged into its weights.

    Args:
        base: the model trained from.
        tensors: float32; with `lora` its peft parameters, else the base's parameters by name.
        lora: settings of the adapter, None where parameters were trained in full.
        dtype: dtype of the weights on disk.
        directory: an existing empty directory to write into.

    Returns:
        What was written, with the survival of the update (survival.py).

    Raises:
        CheckpointError: the tensors do not belong to this base, are not finite, or change nothing.
    """
    merges = _lora_merges(base, tensors, lora) if lora else _full_merges(base, tensors)
    base.copy_rest(directory, dtype)
    tied = base.tied()
    survival, lines = UpdateSurvival(), []
    held: dict[str, tuple[Path, int]] = {}
    for file in base.weight_files():
        shard = {}
        for stored_name, stored in base.tensors(file):
            name = base.loaded_name(stored_name)
            value = stored.float() if stored.is_floating_point() else stored
            if merge := merges.get(tied.get(name, name)):
                merged = merge(value)
                _require_finite(name, merged.to(dtype), dtype)
                survival.add(value, merged, dtype)
                value = merged
            value = value.to(dtype) if value.is_floating_point() else value
            # A file holds no tensor of two names: the second one gets a copy.
            shard[stored_name] = value.clone() if name in tied else value.contiguous()
            if name not in tied:
                lines.append(tensor_line(name, shard[stored_name]))
        place = file.relative_to(base.directory)
        save_file(shard, directory / place, metadata={"format": "pt"})
        held |= {name: (place, tensor.nbytes) for name, tensor in shard.items()}
    _write_index(base, directory, held)
    if survival.update == 0:
        raise CheckpointError("the trained tensors equal the base's: there is nothing to export")
    return WrittenWeights(len(lines), lines_digest(lines), [], survival.share, survival.changed)


def _full_merges(base: BaseModel, tensors: Mapping[str, torch.Tensor]) -> dict[str, Merge]:
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
    base: BaseModel, tensors: Mapping[str, torch.Tensor], lora: LoraConfig
) -> dict[str, Merge]:
    """Each adapted weight gets alpha / rank * B A added."""
    pairs = lora_pairs(tensors, lora, base.adaptable())
    return {f"{module}.weight": _add(pair, lora) for module, pair in pairs.items()}


def _add(pair: LoraPair, lora: LoraConfig) -> Merge:
    """The product is as large as the weight: it is made when its turn comes."""
    return lambda weight: weight + lora_update(pair, lora)


def _require_finite(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    if not torch.isfinite(tensor).all():
        raise CheckpointError(
            f"trained tensor {name} has values that are not finite in {dtype}: training diverged, "
            "or export.dtype is too narrow"
        )


def _write_index(base: BaseModel, directory: Path, held: Mapping[str, tuple[Path, int]]) -> None:
    """The shard index, with the size the shards have now.

    Args:
        held: file and bytes of every stored tensor.
    """
    place = base.weights_folder / base.index_name
    source = base.directory / place
    if not source.exists():
        return
    shards = {name: one for name, one in held.items() if one[0].parent == base.weights_folder}
    index = read_json_object(source, ConfigError)
    total = sum(size for _, size in shards.values())
    index["metadata"] = {**index.get("metadata", {}), "total_size": total}
    index["weight_map"] = {name: file.name for name, (file, _) in sorted(shards.items())}
    (directory / place).write_text(json.dumps(index, indent=2), encoding="utf-8")
