"""A snapshot: a complete checkpoint in float16, sample images, and how it was made."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import JanusForConditionalGeneration, JanusProcessor

from atelier.policies.pretraining.snapshots import describe_snapshot, load_as_float32


def save_snapshot(
    model: JanusForConditionalGeneration,
    processor: JanusProcessor,
    folder: Path,
    samples: Image.Image,
    record: dict[str, Any],
) -> None:
    """Write float16 safetensors that a plain `from_pretrained` loads in float32."""
    copy.deepcopy(model).cpu().half().save_pretrained(folder)
    processor.save_pretrained(folder)
    load_as_float32(folder)
    describe_snapshot(folder, samples, record)
