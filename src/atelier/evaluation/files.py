"""An evaluation on disk: images/, scores.jsonl, grid.png and, last, summary.json.

    images/00000.png    an image
    images/00000.txt    what the policy wrote before it, whole, where it writes
    scores.jsonl        a row an image; of what was written the beginning, as one line

A folder with a summary is complete. All but images and their words appears by renaming, so a reader
never sees half of one; whoever scores images is told when all of them are there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from atelier.errors import DataError
from atelier.evaluation.grid import contact_sheet
from atelier.evaluation.reading import SCORES, SUMMARY, read_rows, read_summary
from atelier.evaluation.results import Evaluation
from atelier.evaluation.suites import SUITES
from atelier.legible import LONGEST_COMPLETION, legible
from atelier.tracking.run_directory import write_json, write_text_atomically

GRID_IMAGES = 16


def write_images(
    folder: Path,
    files: Sequence[str],
    images: NDArray[np.uint8],
    completions: Sequence[str] | None = None,
) -> None:
    """Write uint8 [N, H, W, 3] as these files of an evaluation folder (`ImageRequest.file`), and
    what was written before each beside it."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    if completions is not None:  # first: where an image is, its words are
        for file, words in zip(files, completions, strict=True):
            (folder / _completion(file)).write_text(words, encoding="utf-8", errors="replace")
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(folder / file)


def copy_images(source: Path, folder: Path, files: Sequence[str]) -> None:
    """Copy these files of an evaluation folder into another, each with what was written before
    it."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for file in files:
        if (words := source / _completion(file)).exists():
            shutil.copyfile(words, folder / _completion(file))
        shutil.copyfile(source / file, folder / file)


def read_images(folder: Path, files: Sequence[str]) -> NDArray[np.uint8]:
    """Read these files of an evaluation folder, uint8 [N, H, W, 3].

    Raises:
        DataError: one is absent or unreadable, there are more, or sizes differ.
    """
    found = {f"images/{path.name}" for path in (folder / "images").glob("*.png")}
    if odd := sorted(found ^ set(files)):
        raise DataError(
            f"{folder / 'images'}: the suite asks for {len(files)} images, found {len(found)}; "
            f"first difference: {Path(odd[0]).name}"
        )
    images = [_read_image(folder / file) for file in files]
    if len({image.shape for image in images}) > 1:
        raise DataError(f"{folder / 'images'}: images of one evaluation must have one size")
    return np.stack(images) if images else np.zeros((0, 1, 1, 3), dtype=np.uint8)


def read_completions(folder: Path, files: Sequence[str]) -> list[str | None]:
    """What was written before each of these images: one line, bounded; None where nothing was, and
    of evaluations from before it was kept.

    Raises:
        DataError: a file is unreadable.
    """
    return [_read_completion(folder / _completion(file)) for file in files]


def write_results(folder: Path, evaluation: Evaluation, images: NDArray[np.uint8]) -> None:
    """Write scores, grid and summary beside images that are already there."""
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in evaluation.rows]
    write_text_atomically(folder / SCORES, "".join(line + "\n" for line in lines))
    suite = SUITES[evaluation.summary["suite"]]
    for name, text in suite.files(evaluation.rows, evaluation.summary).items():
        write_text_atomically(folder / name, text)
    if len(images):
        captions = [_caption(row) for row in evaluation.rows[:GRID_IMAGES]]
        aside = folder / ".grid.png"
        contact_sheet(images[:GRID_IMAGES], captions).save(aside, "PNG")
        aside.replace(folder / "grid.png")
    write_json(folder / SUMMARY, evaluation.summary)


def read_evaluation(folder: Path) -> Evaluation:
    """Read a complete evaluation.

    Raises:
        DataError: it has no summary (not there, or not finished), or a file is damaged.
    """
    if not (folder / SUMMARY).is_file():
        raise DataError(f"{folder}: no finished evaluation ({SUMMARY} is missing)")
    summary = read_summary(folder)
    return Evaluation(read_rows(folder, summary), summary)


def _completion(file: str) -> str:
    """Where the words of an image are."""
    return str(Path(file).with_suffix(".txt"))


def _read_completion(path: Path) -> str | None:
    try:
        words = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable text ({error})") from error
    return legible(words, longest=LONGEST_COMPLETION)


def _read_image(path: Path) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except OSError as error:
        raise DataError(f"{path}: not a readable image ({error})") from error


def _caption(row: dict[str, object]) -> Sequence[str]:
    """What was wanted, and what is said of it."""
    if row.get("missing"):
        return [str(row.get("target") or row["prompt"]), "missing"]
    return [str(row.get("target") or row["prompt"]), str(row.get("text") or "")]
