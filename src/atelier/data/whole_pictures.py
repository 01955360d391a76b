"""Decoding the pictures of prompt tables when they are made: a truncated one has a sound header,
and would end a run at whatever step it is drawn, and again whenever that is resumed."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from atelier.config.paths import from_root
from atelier.data.ground_truth import UNREADABLE
from atelier.data.parquet_pictures import COLUMN, bytes_of, is_inside, rows_of_file
from atelier.data.prompts import Prompt
from atelier.errors import DataError
from atelier.legible import legible, legible_value

KEYS = ("image", "source_image")
MOST_REPORTED = 10
_SMALL = (64, 64)  # JPEG is read whole, and as small as this computed, which takes less time


def require_whole(prompts: Iterable[Prompt]) -> None:
    """Check that every picture file that a prompt names can be decoded.

    Raises:
        DataError: the first that cannot, each with its prompt and file.
    """
    owners: dict[Path, Prompt] = {}
    for one in prompts:
        for key in KEYS:
            if (path := one.metadata.get(key)) is not None:
                owners.setdefault(Path(path), one)
    found = [
        f"prompt {owners[path].prompt_id} ({legible_value(owners[path].text)}): {problem}"
        for path, problem in _damaged(owners)
    ]
    if found:
        more = len(found) - MOST_REPORTED
        shown = found[:MOST_REPORTED] + ([f"and {more} more"] if more > 0 else [])
        raise DataError(
            "pictures cannot be decoded; mend the files, or take their rows out\n"
            + "\n".join(f"  {one}" for one in shown)
        )


def _damaged(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Those that cannot be decoded, and why; the pictures of a Parquet file in one go."""
    inside: dict[Path, dict[int, Path]] = {}
    for path in paths:
        if is_inside(path):
            inside.setdefault(path.parent, {})[int(path.name)] = path
        elif problem := _problem(path):
            yield path, problem
    for file, wanted in inside.items():
        for number, row in rows_of_file(from_root(file), [COLUMN]):
            if number in wanted and (problem := _problem(wanted[number], row[COLUMN])):
                yield wanted[number], problem


def _problem(path: Path, cell: Any = None) -> str | None:
    """Why a picture cannot be decoded.

    Args:
        cell: of a Parquet file, which the picture is in.
    """
    try:
        file = io.BytesIO(bytes_of(cell, path)) if is_inside(path) else from_root(path)
        with Image.open(file) as picture:
            picture.draft("RGB", _SMALL)
            picture.load()
    except UNREADABLE as error:
        return legible(f"{path} is damaged: {error}")
    return None
