"""A snapshot: a complete checkpoint in float16, sample images, and how it was made."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import JanusForConditionalGeneration, JanusProcessor

from atelier.policies.pretraining.snapshots import describe_snapshot


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
    # Weights are loaded in the dtype that config.json names.
    path = folder / "config.json"
    path.write_text(json.dumps(_in_float32(json.loads(path.read_text())), indent=2) + "\n")
    describe_snapshot(folder, samples, record)


def _in_float32(config: dict[str, Any]) -> dict[str, Any]:
    """The same with "float32" for every dtype in it, that of the parts too."""
    named = {
        name: _in_float32(value) if isinstance(value, dict) else value
        for name, value in config.items()
    }
    return named | {"dtype": "float32"} if "dtype" in named else named
