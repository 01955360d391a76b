"""What a snapshot of an embedded model has beside its weights, a record and sample images, and how
it becomes the embedded model."""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from atelier.errors import DataError

RECORD = "pretraining.json"  # how a model was made
SAMPLES = "samples.png"
LOG = "log.json"  # beside the snapshots: the curve so far
# What diffusers and transformers note of where a part was loaded from: a place of one machine.
PLACES = ("_name_or_path", "is_local", "local_files_only")
SIZE_LIMIT = 5_000_000  # bytes of an asset

log = logging.getLogger(__name__)


def describe_snapshot(folder: Path, samples: Image.Image, record: dict[str, Any]) -> None:
    """Write sample images and the record beside the weights."""
    samples.save(folder / SAMPLES, optimize=True)
    write_json(folder / RECORD, record)


def read_record(snapshot: Path) -> dict[str, Any]:
    """How the model of a snapshot was made.

    Raises:
        DataError: it is no snapshot.
    """
    if not (snapshot / RECORD).is_file():
        raise DataError(f"{snapshot}: no {RECORD}, so this is no snapshot of `train`")
    record: dict[str, Any] = json.loads((snapshot / RECORD).read_text())
    return record


def install(snapshot: Path, target: Path, record: dict[str, Any], card: str) -> None:
    """Replace `target` by `snapshot` with this record, and the card as README.md.

    Raises:
        DataError: more than `SIZE_LIMIT` bytes.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(snapshot, target)
    forget_places(target)
    write_json(target / RECORD, record)
    (target / "README.md").write_text(card)
    log.info("%s: %d bytes of at most %d", target, check_size(target), SIZE_LIMIT)


def forget_places(folder: Path) -> None:
    """Take PLACES out of the configurations of a model's parts."""
    for path in sorted(folder.rglob("*config.json")):
        said = json.loads(path.read_text())
        kept = {name: value for name, value in said.items() if name not in PLACES}
        if kept != said:
            path.write_text(json.dumps(kept, indent=2) + "\n")


def check_size(folder: Path) -> int:
    """Bytes of all files in a folder.

    Raises:
        DataError: more than `SIZE_LIMIT`.
    """
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > SIZE_LIMIT:
        raise DataError(f"{folder}: {size} bytes, more than the {SIZE_LIMIT} an asset may have")
    return size


def load_as_float32(folder: Path) -> None:
    """Have transformers load in float32 what is stored in less: it takes the dtype that config.json
    names, of a model and of its parts."""
    path = folder / "config.json"
    path.write_text(json.dumps(_in_float32(json.loads(path.read_text())), indent=2) + "\n")


def _in_float32(config: dict[str, Any]) -> dict[str, Any]:
    named = {
        name: _in_float32(value) if isinstance(value, dict) else value
        for name, value in config.items()
    }
    return named | {"dtype": "float32"} if "dtype" in named else named


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file in one go, so that a killed run leaves the last good one."""
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(value, indent=1) + "\n")
    aside.replace(path)


def sample_grid(
    images: NDArray[np.uint8], prompts: Sequence[str], notes: Sequence[str], columns: int = 8
) -> Image.Image:
    """Images [N, H, W, 3] with, below each, the prompt in two lines and a note."""
    height, width = images.shape[1:3]
    cell_width, cell_height = max(width + 8, 96), height + 36
    rows = -(-len(images) // columns)
    grid = Image.new("RGB", (columns * cell_width, rows * cell_height), (235, 235, 235))
    draw, font = ImageDraw.Draw(grid), ImageFont.load_default(size=9)
    for index, (image, prompt, note) in enumerate(zip(images, prompts, notes, strict=True)):
        x, y = index % columns * cell_width, index // columns * cell_height
        grid.paste(Image.fromarray(image), (x + (cell_width - width) // 2, y + 2))
        lines = (*_two_lines(prompt), note)
        for number, line in enumerate(lines):
            draw.text((x + 2, y + height + 2 + 11 * number), line, fill=(0, 0, 0), font=font)
    return grid.quantize(64)


def _two_lines(prompt: str, width: int = 20) -> tuple[str, str]:
    if len(prompt) <= width:
        return prompt, ""
    cut = prompt.rfind(" ", 0, width)
    return prompt[:cut], prompt[cut + 1 :][:width]
