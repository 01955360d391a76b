"""Files as Complex-Edit publishes them, of little pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

OPERATIONS = ("Add an Object", "Change Color", "Apply Filter/Weather", "Remove an Object") * 2


def picture(number: int) -> Image.Image:
    """A picture that no other number gives."""
    return Image.new("RGB", (16 + number % 5, 12), (number * 37 % 256, number % 256, 90))


def png(number: int) -> bytes:
    buffer = io.BytesIO()
    picture(number).save(buffer, "PNG")
    return buffer.getvalue()


def edit_of(number: int, levels: int = 8) -> dict[str, Any]:
    """The key `edit` of a row: instructions that name the picture and the level."""
    return {
        "reasoning": "the table is empty",
        "original_sequence": [
            {"name": OPERATIONS[k], "instruction": f"{number}: step {k + 1}, because"}
            for k in range(levels)
        ],
        "sequence": [
            {"name": OPERATIONS[k], "instruction": f"{number}: step {k + 1}"} for k in range(levels)
        ],
        "compound": [
            {"reasoning": "none", "compound_instruction": f"{number}: compound {k + 1}"}
            for k in range(levels)
        ],
    }


def write_parquet(path: Path, numbers: Sequence[int], as_text: bool = False) -> Path:
    """Rows as in the published Parquet files, three a row group."""
    import pyarrow
    from pyarrow import parquet

    edits = [edit_of(one) for one in numbers]
    table = pyarrow.table(
        {
            "image": [{"bytes": png(one), "path": f"{one}.png"} for one in numbers],
            "edit": [json.dumps(one) for one in edits] if as_text else edits,
        }
    )
    parquet.write_table(table, path, row_group_size=3)
    return path


def write_json(path: Path, numbers: Sequence[int], **more: Any) -> Path:
    """The same as JSON, a list or (.jsonl) lines, pictures beside it."""
    rows = []
    for one in numbers:
        (path.parent / f"{one}.png").write_bytes(png(one))
        rows.append({"image": f"{one}.png", "edit": edit_of(one), **more})
    lines = "\n".join(map(json.dumps, rows)) + "\n"
    path.write_text(lines if path.suffix == ".jsonl" else json.dumps(rows))
    return path
