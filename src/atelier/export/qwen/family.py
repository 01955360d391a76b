"""Exports that diffusers and transformers load: a text encoder for a pipeline, or the whole
pipeline, and a LoRA that peft puts onto the encoder."""

from __future__ import annotations

from atelier.export.families import Family
from atelier.export.language.adapter import check_adapter, write_adapter
from atelier.export.qwen.base import BaseQwen
from atelier.export.qwen.card import loading_lines
from atelier.export.qwen.reference import WritingReference, make_reference
from atelier.policies.qwen.module import QwenModule

FAMILY = Family(
    name="qwen",
    library="diffusers",
    adapter_library="peft",
    base=BaseQwen,
    reference=WritingReference,
    make_reference=make_reference,
    write_adapter=write_adapter,
    check_adapter=check_adapter,
    loading_lines=loading_lines,
    prefixes={f"{QwenModule.held_as}.": ""},
)
