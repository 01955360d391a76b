"""A snapshot: the complete pipeline in float16, sample images, and how it was made."""

import copy
import json
from pathlib import Path
from typing import Any

from diffusers import StableDiffusion3Pipeline
from PIL import Image
from torch import nn

from atelier.policies.pretraining.snapshots import describe_snapshot

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
    # transformers loads in the dtype that config.json names, diffusers in float32: agree.
    for name in TEXT_ENCODERS:
        path = folder / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "float32"}, indent=2))
    describe_snapshot(folder, samples, record)
