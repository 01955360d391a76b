"""Complex-Edit: pictures, each with instructions of eight levels.

Rows {image, edit}, other keys being ignored, as a JSON list, as JSON lines in a file called .jsonl,
or as the published Parquet files. `edit` is {sequence, compound, ...}: compound[k - 1] asks for the
first k atomic edits of the sequence. Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.config.paths import from_root
from atelier.config.prompt_files import shards_of
from atelier.config.sections.edit_levels import MOST
from atelier.data.ground_truth import content_problem
from atelier.data.parquet_pictures import COLUMN, rows_of_file
from atelier.data.prompts import Prompt
from atelier.data.readers.objects import Checked, short
from atelier.data.readers.problems import NotJson, Problems, json_lines, json_list, parse_json

ORIGINS = ("real", "syn")
Edit = dict[str, Any]


@dataclass(frozen=True)
class _Picture:
    path: str
    digest: str


def read(path: Path) -> list[Prompt]:
    """A prompt a picture and level, those of a picture together, from level 1 on.

    Metadata: "source_image" (a path; in Parquet that of `parquet_pictures`), "picture_digest"
    (of its file: equal for equal pictures, whatever they are called), "level" (1 to 8), "category"
    ("C1" to "C8"), "origin" ("real" or "syn", by the row's `split` or the file's name), "sequence",
    the atomic instructions, and "operations", their names, where the row has them.

    Raises:
        DataError: not such a file; or rows that are wrong, all reported with their place and key.
    """
    prompts: list[Prompt] = []
    for shard in shards_of(path):
        problems = Problems(shard)
        rows = _parquet_rows if shard.suffix == ".parquet" else _json_rows
        for row, picture in rows(shard, problems):
            edit = _edit(row)
            if edit is not None and picture is not None:
                prompts += _levels(row, edit, picture, _origin(row, shard), len(prompts))
        problems.raise_if_any()
    return prompts


def _json_rows(path: Path, problems: Problems) -> Iterator[tuple[Checked, _Picture | None]]:
    if path.suffix == ".jsonl":
        values = json_lines(path, problems)
    else:
        values = ((f"row {n}", one) for n, one in enumerate(json_list(path, "rows")))
    for where, value in values:
        if not isinstance(value, dict):
            problems.add(where, f"an object with image and edit expected, found {short(value)}")
            continue
        row = Checked(path, problems, where, value)
        file = row.picture(COLUMN)
        if file is None or not row.is_right:
            yield row, None
        else:
            yield row, _Picture(file, _digest(from_root(file).read_bytes()))


def _parquet_rows(path: Path, problems: Problems) -> Iterator[tuple[Checked, _Picture | None]]:
    for number, value in rows_of_file(path, (COLUMN, "edit")):
        row = Checked(path, problems, f"row {number}", value)
        image = value[COLUMN]
        content = image.get("bytes") if isinstance(image, dict) else image
        if not isinstance(content, bytes):
            row.wrong(f"key {COLUMN!r}: the bytes of a picture, not {short(content)}")
            yield row, None
        elif problem := content_problem(content, path / str(number)):
            row.wrong(f"key {COLUMN!r}: {problem}")
            yield row, None
        else:
            yield row, _Picture(str(path / str(number)), _digest(content))


def _edit(row: Checked) -> Edit | None:
    """What a row's `edit` says: an object, or the text of one."""
    value = row.get("edit")
    try:
        value = parse_json(value) if isinstance(value, str) else value
    except NotJson as error:
        row.wrong(f"key 'edit': not JSON: {error}")
        return None
    compound = value.get("compound") if isinstance(value, dict) else None
    if not isinstance(compound, list) or not 1 <= len(compound) <= MOST:
        row.wrong(
            f"key 'edit': an object with a list `compound` of 1 to {MOST}, not {short(value)}"
        )
        return None
    steps = ("sequence", "original_sequence")
    if no_list := [name for name in steps if not isinstance(value.get(name), list | None)]:
        row.wrong(f"key 'edit': {no_list[0]}: a list, not {short(value[no_list[0]])}")
        return None
    return dict(value)


def _levels(
    row: Checked, edit: Edit, picture: _Picture, origin: str | None, first: int
) -> Iterator[Prompt]:
    sequence = [_field(one, "instruction") for one in edit.get("sequence") or []]
    names = [_field(one, "name") for one in edit.get("original_sequence") or []]
    for level, one in enumerate(edit["compound"], start=1):
        alone = sequence[0] if level == 1 and sequence else ""
        text = (_field(one, "compound_instruction") or alone).strip()
        if not text:
            row.wrong(f"key 'edit': compound {level}: no compound_instruction")
            continue
        metadata: dict[str, Any] = {
            "source_image": picture.path,
            "picture_digest": picture.digest,
            "level": level,
            "category": f"C{level}",
        }
        if origin is not None:
            metadata["origin"] = origin
        for key, values in (("sequence", sequence), ("operations", names)):
            if len(values) >= level and all(values):
                metadata[key] = values[:level]
        yield Prompt(first + level - 1, 0, text, metadata)


def _field(value: Any, name: str) -> str:
    """A text, bare or under its name."""
    found = value.get(name) if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""


def _origin(row: Checked, path: Path) -> str | None:
    """Whether the picture is a photograph or a synthetic one."""
    told = row.get("split")
    if told is not None:
        name = str(told).removeprefix("test_")
        if name not in ORIGINS:
            row.wrong(f"key 'split': {' or '.join(ORIGINS)}, not {short(told)}")
        return name
    words = re.findall(r"[a-z]+", path.stem.lower())
    return next((one for one in ORIGINS if one in words), None)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
