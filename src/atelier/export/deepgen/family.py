"""Exports in the published layout, and a LoRA for the transformer's `load_lora_adapter`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

from diffusers import StableDiffusion3Pipeline
from torch import Tensor

from atelier.config.sections.policy import LoraConfig
from atelier.export.base import BaseModel
from atelier.export.clean_process import deepgen_usage
from atelier.export.deepgen.base import BaseDeepGen
from atelier.export.deepgen.reference import make_reference
from atelier.export.families import Family
from atelier.export.record import ExportRecord
from atelier.export.reference import SOURCE, Reference
from atelier.export.sd3.adapter import LORA_WEIGHTS, check_adapter, save_lora
from atelier.export.sd3.reference import ImageReference
from atelier.policies.deepgen.published import TRANSFORMER

HERE = "path/to/this/directory"
USED = (
    deepgen_usage.load_parts,
    deepgen_usage.pixels_of,
    deepgen_usage.look,
    deepgen_usage.read,
    deepgen_usage.translate,
    deepgen_usage.latent_of,
    deepgen_usage.predict,
    deepgen_usage.paint,
)
IMPORTS = """
import json

import numpy as np
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch.nn.functional import (
    gelu, interpolate, layer_norm, linear, scaled_dot_product_attention
)
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration
"""


def write_adapter(
    base: BaseModel, layers: Mapping[str, Tensor], lora: LoraConfig, directory: Path
) -> None:
    """See families.Family. Raises ConfigError: the base is a file of weights."""
    assert isinstance(base, BaseDeepGen)
    base.require_loadable()
    own = {name.removeprefix(TRANSFORMER): value for name, value in layers.items()}
    save_lora(StableDiffusion3Pipeline, own, lora, directory)


def loading_lines(record: ExportRecord, base: BaseModel, reference: Reference) -> Sequence[str]:
    """See families.Family. The functions are those of the clean process."""
    merged = record.format == "merged"
    assert isinstance(reference, ImageReference)
    functions = "\n\n".join(inspect.getsource(one) for one in USED)
    shape = ", ".join(map(str, (1, *reference.latents.shape[1:])))
    guidance = reference.call["guidance_scale"]
    adapter = f'"{HERE}", weight_name="{LORA_WEIGHTS}"'
    guided, edits = guidance > 1, reference.sources is not None
    shown = ", source" if edits else ""
    return [
        *IMPORTS.strip().splitlines(),
        *("", "", *functions.splitlines(), "", ""),
        f'parts = load_parts("{HERE if merged else base.path}", torch.{record.dtype})',
        *([] if merged else [f'parts["transformer"].load_lora_adapter({adapter})']),
        *(_source_lines(reference) if edits else []),
        f"conditions = translate(parts, read(parts, {reference.prompts[0]!r}{shown}))",
        *([f'against = translate(parts, read(parts, ""{shown}))'] if guided else []),
        f"noise = torch.randn({shape}, generator=torch.Generator().manual_seed(0))",
        f"pixels = paint(parts, conditions, noise, {'against' if guided else None}, "
        f"{reference.call['num_inference_steps']}, {guidance}"
        f"{', latent_of(parts, source)' if edits else ''})",
        'Image.fromarray((pixels * 255).round().astype("uint8")).save("image.png")',
    ]


def _source_lines(reference: Reference) -> Sequence[str]:
    """What makes `source`, as large as the images."""
    height, width = reference.images.shape[1:3]
    return [
        f'source = Image.open("{HERE}/{SOURCE}").convert("RGB")  # or a picture of yours',
        f"source = ImageOps.fit(source, ({width}, {height}))",
    ]


FAMILY = Family(
    name="deepgen",
    library="diffusers",
    adapter_library="diffusers",
    base=BaseDeepGen,
    reference=ImageReference,
    make_reference=make_reference,
    write_adapter=write_adapter,
    check_adapter=check_adapter,
    loading_lines=loading_lines,
    prefixes={TRANSFORMER: TRANSFORMER, "bridge.": ""},
)
