"""Exports that transformers loads: a model directory, and a LoRA that peft puts onto it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from atelier.export.base import BaseModel
from atelier.export.clean_process import janus_usage
from atelier.export.families import Family
from atelier.export.janus.base import BaseJanus
from atelier.export.janus.reference import DrawingReference, make_reference
from atelier.export.language.adapter import check_adapter, write_adapter
from atelier.export.record import ExportRecord
from atelier.export.reference import SOURCE, Reference
from atelier.policies.janus.module import JanusModule

HERE = "path/to/this/directory"


def loading_lines(record: ExportRecord, base: BaseModel, reference: Reference) -> Sequence[str]:
    """See families.Family. As the clean process does it (clean_process/of_janus.py)."""
    assert isinstance(reference, DrawingReference)
    merged, edits = record.format == "merged", reference.sources is not None
    where = HERE if merged else base.path
    cache = "DynamicCache, " if edits else ""
    functions = ["", "", *inspect.getsource(janus_usage.edit).splitlines(), "", ""]
    return [
        *(["from inspect import signature", "", "import numpy as np"] if edits else []),
        "import torch",
        *([] if merged else ["from peft import PeftModel"]),
        "from PIL import Image, ImageOps" if edits else "from PIL import Image",
        f"from transformers import {cache}JanusForConditionalGeneration, JanusProcessor",
        *(functions if edits else [""]),
        f'where = "{where}"',
        "processor = JanusProcessor.from_pretrained(where)",
        f"model = JanusForConditionalGeneration.from_pretrained(where, dtype=torch.{record.dtype})",
        *([] if merged else [f'PeftModel.from_pretrained(model, "{HERE}")']),
        f"prompt = {reference.prompts[0].strip()!r}",
        *(_edited(reference) if edits else _drawn(reference)),
        "pixels = model.decode_image_tokens(tokens).float()[0]",
        "levels = ((pixels + 1) / 2 * 255).clamp(0, 255).to(torch.uint8)",
        "image = Image.fromarray(levels.numpy())",
        'image.save("image.png")',
    ]


def _drawn(reference: Reference) -> Sequence[str]:
    """What makes `tokens` of a prompt."""
    return [
        'text = f"{processor.tokenizer.bos_token}<|User|>: {prompt}\\n\\n<|Assistant|>:"',
        "inputs = processor(",
        '    text=[text], generation_mode="image", add_special_tokens=False, return_tensors="pt"',
        ")",
        "tokens = model.generate(",
        '    **inputs, generation_mode="image", '
        f"guidance_scale={reference.call['guidance_scale']}, do_sample=True, top_k=0",
        ")",
    ]


def _edited(reference: DrawingReference) -> Sequence[str]:
    """What makes `tokens` of a source image and an instruction."""
    height, width = reference.images.shape[1:3]
    how = f"{reference.wish!r}, guidance_scale={reference.call['guidance_scale']}, do_sample=True"
    return [
        f'source = Image.open("{HERE}/{SOURCE}").convert("RGB")  # or a picture of yours',
        f"source = ImageOps.fit(source, ({width}, {height}))",
        f"tokens = edit(model, processor, prompt, source, {how})",
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
