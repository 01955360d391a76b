"""The page's images: the same prompts and noise before, during and after training; of edits beside
their source, and below each what the policy wrote before it, if it writes."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from atelier.config.paths import without_machine_paths
from atelier.data.ground_truth import UNREADABLE, picture_problem, source_image
from atelier.data.prompts import Prompt
from atelier.errors import DataError
from atelier.evaluation.reading import is_inside
from atelier.evaluation.results import IMAGE_SCORE
from atelier.legible import legible
from atelier.report.run_data import Evaluation

_Key = tuple[Any, Any, int]  # data set, prompt and number of an image
Edits = Mapping[tuple[int, int], Prompt]
"""Instructions by data set and number: they know their source pictures."""
LARGEST_SIDE = 192  # pixels embedded in the page; larger images are reduced
# Suite -> what is said of an image below it.
PICTURE_NOTES = {
    "ocr": "the text that was read, and its similarity to the target",
    "scenes": "the facts that do not hold, and 1 where all do",
    "yes_no": "P(yes) of the judge",
    "paircomp": "its score against its own caption",
    "editing": "what is wrong, and the geometric mean of following and preserving",
    "complex_edit": "what is wrong, and the mean of the marks, or of following and preserving",
    "unigenbench": "the test points that are not shown, and the share of those that are",
    "mmmg": "what is not shown, and readability times knowledge fidelity",
}


@dataclass(frozen=True)
class Picture:
    """An image as a data URI (`problem` where there is none), what the suite says of it in words,
    and its score.

    `completion` is what the policy wrote before it: None where it does not write, and of
    evaluations from before it was kept.
    """

    uri: str
    read: str
    score: float | None
    completion: str | None = None
    problem: str = ""


@dataclass(frozen=True)
class Source:
    """The picture that an instruction changes, as a data URI; `problem` where it is gone."""

    uri: str
    problem: str = ""


@dataclass(frozen=True)
class PromptRow:
    """One prompt with one picture a column; `source` where it is an edit."""

    prompt: str
    target: str
    pictures: Sequence[Picture]
    source: Source | None = None

    @property
    def has_words(self) -> bool:
        return any(one.completion is not None for one in self.pictures)


def picture_uri(folder: Path, name: str) -> tuple[str, str]:
    """A PNG of an image file of a run, no side longer than LARGEST_SIDE, as a data URI; or none,
    and why.

    Args:
        name: relative to the folder. One that leads out of it is shown to nobody.
    """
    path = folder / name
    if not is_inside(name):
        return "", legible(f"{name} is outside {folder.name}")
    if problem := picture_problem(path):
        return "", legible(without_machine_paths(problem, folder))
    try:
        with Image.open(path) as opened:
            return _uri(opened.convert("RGB")), ""
    except UNREADABLE as error:
        return "", legible(f"{name} is damaged: {error}")


def _uri(image: Image.Image) -> str:
    if max(image.size) > LARGEST_SIDE:
        image.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def first_prompts(evaluations: Sequence[Evaluation], count: int, edits: Edits) -> list[PromptRow]:
    """The first prompts of the suite, not the best ones, one column an evaluation."""
    tables = [_by_image(one) for one in evaluations]
    shared = [key for key in tables[0] if all(key in table for table in tables)] if tables else []
    return [_row(evaluations, tables, key, edits) for key in shared[:count]]


def most_worsened(both: Sequence[Evaluation], count: int, edits: Edits) -> list[PromptRow]:
    """The prompts whose image's score fell the most.

    Args:
        both: before and after; without them there are none.
    """
    if not both:
        return []
    metric = both[1].summary.get("image_score", IMAGE_SCORE)
    first, second = tables = [_by_image(one) for one in both]
    falls: list[tuple[float, _Key]] = []
    for key in first:
        then, now = first[key].get(metric), second.get(key, {}).get(metric)
        if then is not None and now is not None and now < then:
            falls.append((now - then, key))
    return [_row(both, tables, key, edits) for _, key in sorted(falls)[:count]]


def _by_image(one: Evaluation) -> dict[_Key, dict[str, Any]]:
    return {
        (row.get("dataset_id"), row["prompt_id"], row.get("number", 0)): row for row in one.rows
    }


def _row(
    evaluations: Sequence[Evaluation],
    tables: Sequence[dict[_Key, dict[str, Any]]],
    key: _Key,
    edits: Edits,
) -> PromptRow:
    rows = [table[key] for table in tables]
    pictures = [_picture(one, row) for one, row in zip(evaluations, rows, strict=True)]
    edit = edits.get((key[0] or 0, key[1]))
    target = str(rows[0].get("target") or "")
    return PromptRow(rows[0]["prompt"], target, pictures, None if edit is None else _source(edit))


def _picture(one: Evaluation, row: Mapping[str, Any]) -> Picture:
    uri, problem = picture_uri(one.folder, row["image"])
    return Picture(
        uri,
        "nothing" if row.get("text") == "" else row.get("text") or "",
        row.get(one.summary.get("image_score", IMAGE_SCORE)),
        row.get("completion"),
        problem,
    )


def _source(edit: Prompt) -> Source | None:
    try:
        picture = source_image(edit)
    except DataError as error:  # data may move on when a run is done: its page is still to be made
        return Source("", legible(str(error)))
    return None if picture is None else Source(_uri(picture))
