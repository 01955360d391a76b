"""A LoRA directory for `pipe.load_lora_weights(directory)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
from torch import Tensor

from atelier.config.sections.policy import LoraConfig
from atelier.errors import CheckpointError, ConfigError
from atelier.export.base import BaseModel
from atelier.export.lora import read_lora_file, require_scale
from atelier.export.pipeline import BasePipeline
from atelier.export.record import ExportRecord

LORA_WEIGHTS = "pytorch_lora_weights.safetensors"


def write_adapter(
    base: BaseModel, layers: Mapping[str, Tensor], lora: LoraConfig, directory: Path
) -> None:
    """Write the LoRA weights with the metadata that carries alpha.

    Without the metadata `load_lora_weights` takes alpha = rank, silently.

    Raises:
        ConfigError: the base's pipeline class loads no LoRA.
    """
    assert isinstance(base, BasePipeline)
    pipeline_class = getattr(diffusers, base.class_name, None)
    if pipeline_class is None or not hasattr(pipeline_class, "save_lora_weights"):
        raise ConfigError(f"export.formats: adapter: {base.class_name} loads no LoRA weights")
    save_lora(pipeline_class, layers, lora, directory)


def save_lora(
    pipeline_class: Any, layers: Mapping[str, Tensor], lora: LoraConfig, directory: Path
) -> None:
    """Write the layers of a transformer, with the metadata that carries alpha."""
    pipeline_class.save_lora_weights(
        directory,
        transformer_lora_layers=dict(layers),
        transformer_lora_adapter_metadata={
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "target_modules": list(lora.target_modules),
        },
    )


def check_adapter(directory: Path, record: ExportRecord) -> None:
    """Hold keys and metadata of the LoRA file against the record, without loading a pipeline.

    Raises:
        CheckpointError: file missing or unreadable, a key without the transformer's prefix, fewer
            tensors than recorded, no alpha or another one.
    """
    path, expected = directory / LORA_WEIGHTS, record.weights
    metadata = read_lora_file(path, "transformer.", expected.tensors, "diffusers")
    where = f"{path}: metadata lora_adapter_metadata"
    try:
        fields = json.loads(metadata.get("lora_adapter_metadata", "{}"))
        rank, alpha = fields.get("transformer.r"), fields.get("transformer.lora_alpha")
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{where}: {error}") from error
    require_scale(where, rank, alpha, expected.scaling, "diffusers")
