"""Sampled questions to judges and what was answered, as lines of train/judge_traces.jsonl.

A line has time, judge (key of the configuration), form, prompt, system, images (sha256 of the
pixels, size, a small PNG in base64), numbers, missing, asked, measured, replies. The mirror shows
them as traces. No token is among them: the client cuts its own out of all that an endpoint says.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import threading
from datetime import UTC, datetime
from typing import Any

from PIL.Image import Image, Resampling

from atelier.judge.questions import Answer, Question
from atelier.tracking.events import JsonLines
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

LARGEST_FILE = 16 * 2**20  # bytes; a question about an image takes some 20,000
LARGEST_SIDE = 96  # pixels of a kept image
_LONGEST_TEXT = 4000
_MOST_IMAGES = 4


class JudgeTraces:
    """A bounded file of questions and answers; any thread may add to it.

    Lines stay when a run is resumed from an earlier checkpoint: they tell what was asked, and
    nothing is computed from them.
    """

    def __init__(self, run: RunDirectory, largest_file: int = LARGEST_FILE) -> None:
        path = run.judge_traces
        whole = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        self._lines = JsonLines(path)
        self._lines.cut_back(whole)  # a killed trainer may have left half a line
        self._left = largest_file - whole
        self._writing = threading.Lock()

    def add(self, judge: str, question: Question, answer: Answer) -> None:
        """Append a question with its answer, unless the file is full."""
        record = _record(judge, question, answer)
        with self._writing:
            if self._left <= 0:
                return
            before = self._lines.size()
            self._lines.append(record)
            self._left -= self._lines.size() - before
            if self._left <= 0:
                logger.warning("%s is full; no more questions are added", self._lines.path.name)

    def close(self) -> None:
        with self._writing:
            self._left = 0  # whoever still asks adds nothing
            self._lines.close()


def _record(judge: str, question: Question, answer: Answer) -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "judge": judge,
        "form": type(question.form).__name__,
        "prompt": _bounded(question.prompt),
        "system": _bounded(question.system),
        "images": [_image(one) for one in question.images[:_MOST_IMAGES]],
        "numbers": dict(answer.numbers),
        "missing": _bounded(answer.missing),
        "asked": answer.asked,
        "measured": answer.measured,
        "replies": [
            {"text": _bounded(one.text), "refusal": _bounded(one.refusal)} for one in answer.replies
        ],
    }


def _image(image: Image) -> dict[str, Any]:
    rgb = image.convert("RGB")
    small = rgb.copy()
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "PNG", optimize=True)
    return {
        "sha256": hashlib.sha256(rgb.tobytes()).hexdigest(),
        "size": list(rgb.size),
        "png": base64.b64encode(buffer.getvalue()).decode(),
    }


def _bounded(text: str | None) -> str | None:
    """The beginning of a text, printable but for its line breaks."""
    if text is None:
        return None
    kept = text[:_LONGEST_TEXT] + ("..." if len(text) > _LONGEST_TEXT else "")
    return "".join(char if char.isprintable() or char == "\n" else " " for char in kept)
