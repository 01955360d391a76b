"""Exports that transformers loads: a model directory, and a LoRA that peft puts onto it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from atelier.config.schema import LoraConfig, PolicyConfig, RunConfig
from atelier.data.prompts import Prompt
from atelier.export.base import BaseModel
from atelier.export.families import Family
from atelier.export.janus import adapter, base, reference
from atelier.export.record import ExportRecord
from atelier.export.reference import Reference


class JanusFamily(Family):
    """See families.Family."""

    name = "janus"
    library, adapter_library = "transformers", "peft"
    pipeline_tag = "any-to-any"
    prefix = "janus."

    def base_of(self, policy: PolicyConfig) -> BaseModel:
        return base.base_of(policy)

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
        """As the clean process does it (clean_process/of_janus.py)."""
        merged = record.format == "merged"
        source = "path/to/this/directory" if merged else base.path
        return [
            "import torch",
            *([] if merged else ["from peft import PeftModel"]),
            "from PIL import Image",
            "from transformers import JanusForConditionalGeneration, JanusProcessor",
            "",
            f'source = "{source}"',
            "processor = JanusProcessor.from_pretrained(source)",
            "model = JanusForConditionalGeneration.from_pretrained("
            f"source, dtype=torch.{record.dtype})",
            *([] if merged else ['PeftModel.from_pretrained(model, "path/to/this/directory")']),
            f"prompt = {reference.prompts[0].strip()!r}",
            'text = f"{processor.tokenizer.bos_token}<|User|>: {prompt}\\n\\n<|Assistant|>:"',
            "inputs = processor(",
            '    text=[text], generation_mode="image", add_special_tokens=False, '
            'return_tensors="pt"',
            ")",
            "tokens = model.generate(",
            '    **inputs, generation_mode="image", '
            f"guidance_scale={reference.call['guidance_scale']}, do_sample=True, top_k=0",
            ")",
            "pixels = model.decode_image_tokens(tokens).float()[0]",
            "levels = ((pixels + 1) / 2 * 255).clamp(0, 255).to(torch.uint8)",
            "image = Image.fromarray(levels.numpy())",
        ]
