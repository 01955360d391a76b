"""An adapter for `PeftModel.from_pretrained(model, directory)`."""

from __future__ import annotations

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
from atelier.tracking.run_directory import read_json_object

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
    fields = read_json_object(path, CheckpointError)
    require_scale(str(path), fields.get("r"), fields.get("lora_alpha"), expected.scaling, "peft")
