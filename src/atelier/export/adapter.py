"""Format `adapter`: the LoRA alone, float32, for the library that loads the base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from atelier.config.sections.policy import LoraConfig
from atelier.export.base import BaseModel
from atelier.export.clean_process.digests import tensors_digest
from atelier.export.families import family_of
from atelier.export.lora import lora_pairs, named, require_update
from atelier.export.record import WrittenWeights


def export_adapter(
    base: BaseModel, tensors: Mapping[str, torch.Tensor], lora: LoraConfig, directory: Path
) -> WrittenWeights:
    """Write the LoRA weights with what says their scale.

    Args:
        base: the model trained from.
        tensors: the trained peft parameters by name (lora.lora_pairs).
        lora: rank, alpha and target modules they were trained with.
        directory: an existing directory to write into.

    Raises:
        CheckpointError: the tensors are not the adapter of this base and configuration, or add
            nothing to it.
        ConfigError: the base can have no adapter.
    """
    pairs = lora_pairs(tensors, lora, base.adaptable())
    require_update(pairs)
    layers = named(pairs)
    family_of(base.family).write_adapter(base, layers, lora, directory)
    return WrittenWeights(
        tensors=len(layers), digest=tensors_digest(layers), scaling=[lora.alpha / lora.rank]
    )
