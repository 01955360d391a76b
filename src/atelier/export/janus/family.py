"""Exports that transformers loads: a model directory, and a LoRA that peft puts onto it."""

from __future__ import annotations

from collections.abc import Sequence

from atelier.export.base import BaseModel
from atelier.export.families import Family
from atelier.export.janus.base import BaseJanus
from atelier.export.janus.reference import DrawingReference, make_reference
from atelier.export.language.adapter import check_adapter, write_adapter
from atelier.export.record import ExportRecord
from atelier.export.reference import Reference
from atelier.policies.janus.module import JanusModule


def loading_lines(record: ExportRecord, base: BaseModel, reference: Reference) -> Sequence[str]:
    """See families.Family. As the clean process does it (clean_process/of_janus.py)."""
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
        '    text=[text], generation_mode="image", add_special_tokens=False, return_tensors="pt"',
        ")",
        "tokens = model.generate(",
        '    **inputs, generation_mode="image", '
        f"guidance_scale={reference.call['guidance_scale']}, do_sample=True, top_k=0",
        ")",
        "pixels = model.decode_image_tokens(tokens).float()[0]",
        "levels = ((pixels + 1) / 2 * 255).clamp(0, 255).to(torch.uint8)",
        "image = Image.fromarray(levels.numpy())",
    ]


FAMILY = Family(
    name="janus",
    library="transformers",
    adapter_library="peft",
    base=BaseJanus,
    reference=DrawingReference,
    make_reference=make_reference,
    write_adapter=write_adapter,
    check_adapter=check_adapter,
    loading_lines=loading_lines,
    prefixes={f"{JanusModule.held_as}.": ""},
)
