"""Captioned pictures: JSON lines {caption, image}, or Parquet with the columns caption and image.

Source: DeepGen-RL, which names no format; the columns are the usual ones of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atelier.config.prompt_files import shards_of
from atelier.data.ground_truth import content_problem
from atelier.data.parquet_pictures import COLUMN, count_rows, rows_of_file
from atelier.data.prompts import Prompt
from atelier.data.readers.objects import Checked, checked_lines, short
from atelier.data.readers.problems import Problems, lines, read_text

KEYS = ("caption", COLUMN)


def read(path: Path) -> list[Prompt]:
    """One prompt a picture, its text the caption; metadata "image", a path (in Parquet that of
    `parquet_pictures`), so that `data.ground_truth` finds the picture. All shards of a file are
    read.

    Raises:
        DataError: not such a file, no row; or rows that are wrong, all reported with their place
            and key.
    """
    prompts: list[Prompt] = []
    for shard in shards_of(path):
        rows = _parquet_rows if shard.suffix == ".parquet" else _json_rows
        for row, picture in rows(shard):
            metadata = {"image": picture}
            prompts.append(Prompt(len(prompts), 0, row.text("caption"), metadata))
    return prompts


def count(path: Path) -> int:
    """How many rows all shards of a file have, sound or not.

    Raises:
        DataError: one is missing, or none that can be opened.
    """
    return sum(
        count_rows(shard) if shard.suffix == ".parquet" else len(list(lines(read_text(shard))))
        for shard in shards_of(path)
    )


def _json_rows(path: Path) -> Iterator[tuple[Checked, str | None]]:
    for row in checked_lines(path, KEYS):
        yield row, row.picture(COLUMN)


def _parquet_rows(path: Path) -> Iterator[tuple[Checked, str | None]]:
    problems = Problems(path)
    for number, value in rows_of_file(path, KEYS):
        row = Checked(path, problems, f"row {number}", value)
        image = value[COLUMN]
        content = image.get("bytes") if isinstance(image, dict) else image
        if not isinstance(content, bytes):
            row.wrong(f"key {COLUMN!r}: the bytes of a picture, not {short(content)}")
        elif problem := content_problem(content, path / str(number)):
            row.wrong(f"key {COLUMN!r}: {problem}")
        yield row, str(path / str(number))
    problems.raise_if_any()
