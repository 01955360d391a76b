"""Format `adapter`: a LoRA directory for `pipe.load_lora_weights(directory)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import diffusers
import torch

from atelier.config.schema import LoraConfig
from atelier.errors import ConfigError
from atelier.export.base import BasePipeline
from atelier.export.clean_process import tensors_digest
from atelier.export.lora import lora_pairs, named, require_update
from atelier.export.record import WrittenWeights


def export_adapter(
    base: BasePipeline, tensors: Mapping[str, torch.Tensor], lora: LoraConfig, directory: Path
) -> WrittenWeights:
    """Write the LoRA weights, float32, with the metadata that carries alpha.

    Without the metadata `load_lora_weights` takes alpha = rank, silently (spec platform 15).

    Args:
        base: the pipeline trained from.
        tensors: the trained peft parameters by name (lora.lora_pairs).
        lora: rank, alpha and target modules they were trained with.
        directory: an existing directory to write into.

    Raises:
        CheckpointError: the tensors are not the adapter of this base and configuration, or add
            nothing to it.
        ConfigError: the base's pipeline class loads no LoRA.
    """
    pairs = lora_pairs(tensors, lora, base.tensor_shapes())
    require_update(pairs)
    layers = named(pairs)
    pipeline_class = getattr(diffusers, base.class_name, None)
    if pipeline_class is None or not hasattr(pipeline_class, "save_lora_weights"):
        raise ConfigError(f"export.formats: adapter: {base.class_name} loads no LoRA weights")
    pipeline_class.save_lora_weights(
        directory,
        transformer_lora_layers=layers,
        transformer_lora_adapter_metadata={
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "target_modules": list(lora.target_modules),
        },
    )
    return WrittenWeights(
        tensors=len(layers), digest=tensors_digest(layers), scaling=[lora.alpha / lora.rank]
    )
