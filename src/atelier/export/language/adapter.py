"""An adapter for `PeftModel.from_pretrained(model, directory)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from peft import LoraConfig as PeftLoraConfig
from safetensors.torch import save_file
from torch import Tensor

from atelier.config.sections.policy import LoraConfig
from atelier.errors import CheckpointError
from atelier.export.base import BaseModel
from atelier.export.language.base import LANGUAGE_MODEL, BaseLanguageModel
from atelier.export.lora import read_lora_file, require_scale
from atelier.export.record import ExportRecord
from atelier.policies.language.adapters import language_model_layers

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."


def write_adapter(
    base: BaseModel, layers: Mapping[str, Tensor], lora: LoraConfig, directory: Path
) -> None:
    """Write the LoRA weights and the configuration that says where they go and at what scale.

    Raises:
        ConfigError: the base is nothing that transformers loads.
    """
    assert isinstance(base, BaseLanguageModel)
    base.require_loadable()
    config = PeftLoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=language_model_layers(lora.target_modules),
        lora_dropout=0.0,
        base_model_name_or_path=base.path,
        inference_mode=True,
    )
    config.save_pretrained(str(directory))
    tensors = {f"{PREFIX}{name}": tensor for name, tensor in layers.items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def check_adapter(directory: Path, record: ExportRecord) -> None:
    """Hold keys and configuration of an adapter against the record, without loading its base.

    Raises:
        CheckpointError: file missing or unreadable, a key that is not of the language model, fewer
            tensors than recorded, another scale.
    """
    path, expected = directory / CONFIG, record.weights
    begin = f"{PREFIX}{LANGUAGE_MODEL}"
    read_lora_file(directory / WEIGHTS, begin, expected.tensors, "peft")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        rank, alpha = fields.get("r"), fields.get("lora_alpha")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: not an adapter's configuration: {error!r}") from error
    require_scale(str(path), rank, alpha, expected.scaling, "peft")
