"""A snapshot: the complete pipeline in float16, sample images, and how it was made."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from diffusers import StableDiffusion3Pipeline
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import nn

RECORD = "pretraining.json"
SAMPLES = "samples.png"
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
    samples.save(folder / SAMPLES, optimize=True)
    write_json(folder / RECORD, record)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file in one go, so that a killed run leaves the last good one."""
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(value, indent=1) + "\n")
    aside.replace(path)


def sample_grid(
    images: NDArray[np.uint8], prompts: Sequence[str], texts: Sequence[str], columns: int = 8
) -> Image.Image:
    """Images [N, H, W, 3] with, below each, the prompt in two lines and the text that OCR read."""
    height, width = images.shape[1:3]
    cell_width, cell_height = max(width + 8, 96), height + 36
    rows = -(-len(images) // columns)
    grid = Image.new("RGB", (columns * cell_width, rows * cell_height), (235, 235, 235))
    draw, font = ImageDraw.Draw(grid), ImageFont.load_default(size=9)
    for index, (image, prompt, text) in enumerate(zip(images, prompts, texts, strict=True)):
        x, y = index % columns * cell_width, index // columns * cell_height
        grid.paste(Image.fromarray(image), (x + (cell_width - width) // 2, y + 2))
        lines = (*_two_lines(prompt), f"read: {text}" if text else "")
        for number, line in enumerate(lines):
            draw.text((x + 2, y + height + 2 + 11 * number), line, fill=(0, 0, 0), font=font)
    return grid.quantize(64)


def _two_lines(prompt: str, width: int = 20) -> tuple[str, str]:
    if len(prompt) <= width:
        return prompt, ""
    cut = prompt.rfind(" ", 0, width)
    return prompt[:cut], prompt[cut + 1 :][:width]
