"""A snapshot: the complete pipeline in float16, sample images, and how it was made."""

import copy
from pathlib import Path
from typing import Any

from diffusers import StableDiffusion3Pipeline
from PIL import Image
from torch import nn

from atelier.policies.pretraining.snapshots import describe_snapshot, load_as_float32

TEXT_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")


def save_snapshot(
    pipeline: StableDiffusion3Pipeline, folder: Path, samples: Image.Image, record: dict[str, Any]
) -> None:
    """Write float16 safetensors that a plain `from_pretrained` loads in float32."""
    parts = {
        name: copy.deepcopy(part).cpu().half() if isinstance(part, nn.Module) else part
        for name, part in pipeline.components.items()
    }
    StableDiffusion3Pipeline(**parts).save_pretrained(folder)
    for name in TEXT_ENCODERS:
        load_as_float32(folder / name)
    describe_snapshot(folder, samples, record)
