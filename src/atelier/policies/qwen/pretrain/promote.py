"""A snapshot becomes the embedded pipeline: measured on this machine, refused where what is written
does not matter enough, copied, with a card."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline

from atelier.errors import DataError
from atelier.policies.pretraining.snapshots import LOG, install, read_record
from atelier.policies.qwen.pretrain.card import card
from atelier.policies.qwen.pretrain.exam import Exam, failures
from atelier.policies.qwen.pretrain.world import LEVELS
from atelier.policies.qwen.templates import reads_image
from atelier.policies.qwen.tiny.parts import Kind

log = logging.getLogger(__name__)
MEASURE_SEED = 1000  # other scenes and other noise than those that chose the snapshot


def promote_snapshot(snapshot: Path, target: Path, heldout: int) -> None:
    """Replace `target` by `snapshot`, what it measures here, and README.md.

    Raises:
        DataError: not a snapshot, more than `SIZE_LIMIT` bytes, or it does not pass the gate.
    """
    record = read_record(snapshot)
    whole = snapshot.parent / LOG
    if whole.is_file():  # what became of the run after the snapshot
        record["curve"] = json.loads(whole.read_text())["curve"]
    record["measured"] = measure(snapshot, heldout)
    log.info("measured on this machine: %s", record["measured"])
    failed = failures(record["measured"])
    if failed:
        raise DataError(f"{snapshot}: does not pass the gate: {'; '.join(failed)}; train it again")
    install(snapshot, target, record, card(record))


def measure(folder: Path, heldout: int, seed: int = MEASURE_SEED) -> dict[str, Any]:
    """What the pipeline in a folder can do, loaded as anybody would load it, by the trainer's path.

    Raises:
        DataError: a part does not load in float32.
    """
    pipeline = DiffusionPipeline.from_pretrained(folder)
    for name, part in pipeline.components.items():
        if isinstance(part, torch.nn.Module) and part.dtype != torch.float32:
            raise DataError(f"{folder}/{name}: loads as {part.dtype}, expected float32")
    kind: Kind = "edit" if reads_image(pipeline) else "text"
    with ThreadPoolExecutor(1) as executor:
        exam = Exam(pipeline, kind, heldout, seed, executor)
        found: dict[str, Any] = {
            "heldout": heldout,
            "ceiling": exam.round_trip(),
            **_measured(pipeline, exam),
        }
        for level in [one for one in LEVELS if one > 1 and kind == "edit"]:
            more = Exam(pipeline, kind, heldout, seed, executor, level)
            found[f"C{level}"] = _measured(pipeline, more)
        return found


def _measured(pipeline: Any, exam: Exam) -> dict[str, float]:
    written = exam.written(pipeline.text_encoder)
    ways = exam.ways(pipeline.text_encoder, written)
    found, _, _ = exam.scores(ways, exam.painted_by_pipeline)
    return {"right completions": round(exam.right_words(written), 4), **found}
