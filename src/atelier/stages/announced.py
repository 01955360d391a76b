"""Which folders of images train/events.jsonl says are there to be scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.errors import DataError
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory

EVENT = "evaluation_images"


@dataclass(frozen=True)
class Images:
    """Images of the first `prompts` held-out prompts in a folder, as they were after a step."""

    folder: Path
    prompts: int
    step: int


def announced_images(run: RunDirectory) -> Iterator[Images]:
    """What the trainer has announced so far, in its order.

    Raises:
        DataError: a line is no event, or lacks what its event needs (file and byte named).
    """
    start = 0
    for end, event in read_json_lines(run.events):
        if wrong := _wrong(run, event):
            raise DataError(
                f"{run.events}: the line at byte {start}: {wrong}: no event of a trainer; mend or "
                "remove the line, then resume the run"
            )
        if event["event"] == EVENT:
            yield Images(run.train / event["folder"], event["prompts"], event["step"])
        start = end


def _wrong(run: RunDirectory, event: dict[str, Any]) -> str:
    """The keys that are missing or cannot be right; empty if none."""
    if not isinstance(event.get("event"), str):
        return "event"
    if event["event"] != EVENT:
        return ""
    wrong = [name for name in ("prompts", "step") if type(event.get(name)) is not int]
    return ", ".join(wrong if _is_inside(run.train, event.get("folder")) else ["folder", *wrong])


def _is_inside(root: Path, folder: object) -> bool:
    """Whether what is scored, and so written, lies in the folder of the stage that scores."""
    if not isinstance(folder, str) or "\0" in folder:
        return False
    root = root.resolve()
    return root in (root / folder).resolve().parents
