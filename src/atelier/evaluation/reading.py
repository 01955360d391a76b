"""scores.jsonl and summary.json of an evaluation, checked: a run directory travels, and what reads
it relies on what is in there.

It imports nothing heavy: whatever shows a run reads these.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from atelier.errors import DataError
from atelier.legible import legible, legible_value
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import read_json_object

SCORES, SUMMARY = "scores.jsonl", "summary.json"
Known = TypeVar("Known", bound=BaseModel)


class _Metric(BaseModel):
    """What every reader of a metric relies on."""

    model_config = ConfigDict(strict=True)

    mean: FiniteFloat
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None


class _Summary(BaseModel):
    """What readers of a summary rely on; runs of before there were suites lack some of it."""

    model_config = ConfigDict(strict=True)

    images: NonNegativeInt
    suite: str = ""
    headline: str = ""
    image_score: str = ""
    unit: str = ""
    bootstrap_samples: PositiveInt = 10_000
    metrics: dict[str, _Metric] = {}


class _Row(BaseModel):
    """What readers of a row rely on."""

    model_config = ConfigDict(strict=True)

    image: str
    prompt: str
    prompt_id: int
    dataset_id: int | None = None
    number: int = 0
    text: str | None = None
    completion: str | None = None


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished evaluation.

    Raises:
        DataError: it cannot be read, or lacks what readers rely on.
    """
    path = folder / SUMMARY
    values = read_json_object(path)
    known = _checked(_Summary, str(path), values)
    return {"metrics": {}, **values, "bootstrap_samples": known.bootstrap_samples}


def read_rows(folder: Path, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for every image that the summary counts.

    Raises:
        DataError: there are more or fewer, or one has a number that is none (row named).
    """
    path = folder / SCORES
    rows = [row for _, row in read_json_lines(path)]
    if len(rows) != summary["images"]:
        raise DataError(f"{path}: {len(rows)} rows for {summary['images']} images")
    for number, row in enumerate(rows, start=1):
        _require_finite(f"{path}: row {number}", row)
    return rows


def require_shown(
    folder: Path, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> None:
    """Raise DataError unless every row has what pages and comparisons of any suite rely on: its
    image within the folder, its prompt, and scores that are numbers, or None."""
    scores = [*summary["metrics"], summary.get("image_score")]
    for number, row in enumerate(rows, start=1):
        _require_row(f"{folder / SCORES}: row {number}", row, scores)


def is_inside(name: str) -> bool:
    """Whether a file's name leads no way out of the folder that it is relative to."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _require_finite(where: str, row: Mapping[str, Any]) -> None:
    """Missing is never a number that JSON has not, or no float holds."""
    for key, value in row.items():
        if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise DataError(
                f"{where}: {legible(key)} is {legible_value(value)}, which is no number"
            )


def _require_row(where: str, row: Mapping[str, Any], scores: Sequence[str | None]) -> None:
    known = _checked(_Row, where, row)
    if not is_inside(known.image):
        raise DataError(
            f"{where}: image: {legible_value(known.image)} is outside the evaluation's folder"
        )
    for key in row.keys() & set(scores):
        if not isinstance(row[key], int | float | None):
            raise DataError(f"{where}: {legible(key)}: a number expected")


def _checked(kind: type[Known], where: str, values: Mapping[str, Any]) -> Known:
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise DataError(f"{where}: {legible(at)}: {first['msg']}") from error
