"""Exports that diffusers loads: a pipeline directory, and a LoRA for `load_lora_weights`."""

from __future__ import annotations

from collections.abc import Sequence

from atelier.export.base import BaseModel
from atelier.export.families import Family
from atelier.export.record import ExportRecord
from atelier.export.reference import Reference
from atelier.export.sd3.adapter import check_adapter, write_adapter
from atelier.export.sd3.base import BaseSD3
from atelier.export.sd3.reference import ImageReference, make_reference


def loading_lines(record: ExportRecord, base: BaseModel, reference: Reference) -> Sequence[str]:
    """See families.Family."""
    merged = record.format == "merged"
    source = "path/to/this/directory" if merged else base.path
    arguments = ", ".join(f"{name}={value}" for name, value in reference.call.items())
    prompt = repr(reference.prompts[0])
    return [
        "import torch",
        "from diffusers import DiffusionPipeline",
        f'pipe = DiffusionPipeline.from_pretrained("{source}", dtype=torch.{record.dtype})',
        *([] if merged else ['pipe.load_lora_weights("path/to/this/directory")']),
        "noise = torch.Generator().manual_seed(0)",
        f"image = pipe({prompt}, generator=noise, {arguments}).images[0]",
        'image.save("image.png")',
    ]


FAMILY = Family(
    name="sd3",
    library="diffusers",
    adapter_library="diffusers",
    base=BaseSD3,
    reference=ImageReference,
    make_reference=make_reference,
    write_adapter=write_adapter,
    check_adapter=check_adapter,
    loading_lines=loading_lines,
)
