"""Exports that diffusers loads: a pipeline directory, and a LoRA for `load_lora_weights`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from atelier.config.schema import LoraConfig, PolicyConfig, RunConfig
from atelier.data.prompts import Prompt
from atelier.export.base import BaseModel
from atelier.export.families import Family
from atelier.export.record import ExportRecord
from atelier.export.reference import Reference
from atelier.export.sd3 import adapter, base, reference


class SD3Family(Family):
    """See families.Family."""

    name = "sd3"
    library = adapter_library = "diffusers"
    pipeline_tag = "text-to-image"

    def base_of(self, policy: PolicyConfig) -> BaseModel:
        return base.open_base(policy.path, policy.revision)

    def open_base(self, path: str) -> BaseModel:
        return base.open_base(path)

    def local_base(self, path: str) -> BaseModel | None:
        return base.local_base(path)

    def make_reference(
        self,
        config: RunConfig,
        tensors: Mapping[str, Tensor],
        prompts: Sequence[Prompt],
        device: str,
    ) -> Reference:
        return reference.make_reference(config, tensors, prompts, device)

    def load_reference(self, path: Path) -> Reference:
        return reference.load_reference(path)

    def write_adapter(
        self, base: BaseModel, layers: Mapping[str, Tensor], lora: LoraConfig, directory: Path
    ) -> None:
        adapter.write_adapter(base, layers, lora, directory)

    def check_adapter(self, directory: Path, record: ExportRecord) -> None:
        adapter.check_adapter(directory, record)

    def loading_lines(
        self, record: ExportRecord, base: BaseModel, reference: Reference
    ) -> Sequence[str]:
        merged = record.format == "merged"
        source = "path/to/this/directory" if merged else base.path
        arguments = ", ".join(f"{name}={value}" for name, value in reference.call.items())
        return [
            "import torch",
            "from diffusers import DiffusionPipeline",
            f'pipe = DiffusionPipeline.from_pretrained("{source}", dtype=torch.{record.dtype})',
            *([] if merged else ['pipe.load_lora_weights("path/to/this/directory")']),
            f"image = pipe({reference.prompts[0]!r}, {arguments}).images[0]",
        ]
