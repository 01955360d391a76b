"""What the trainings leave: parts and whole pipelines, in float16, that load in float32."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from atelier.policies.pretraining.snapshots import load_as_float32

ENCODER, AUTOENCODER, TOKENIZER = "text_encoder", "vae", "tokenizer"

Part = TypeVar("Part", bound=nn.Module)


def rounded_part(part: Part) -> Part:
    """A copy with the weights that a snapshot of it will have, held in float32."""
    return copy.deepcopy(part).half().float().eval().requires_grad_(False)


def save_part(part: nn.Module, folder: Path) -> None:
    """A language model or an autoencoder by itself, as a folder of a pipeline."""
    stored: Any = copy.deepcopy(part).cpu().half()
    stored.save_pretrained(folder)
    load_as_float32(folder)


def save_pipeline(pipeline: Any, folder: Path) -> None:
    """Write float16 safetensors that a plain `from_pretrained` loads in float32."""
    parts = {
        name: copy.deepcopy(part).cpu().half() if isinstance(part, nn.Module) else part
        for name, part in pipeline.components.items()
    }
    type(pipeline)(**parts).save_pretrained(folder)
    load_as_float32(folder / ENCODER)
