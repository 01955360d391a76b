"""A snapshot becomes the embedded model: copied, checked, measured on this machine, with a card."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import JanusForConditionalGeneration, JanusProcessor

from atelier.errors import DataError
from atelier.policies.janus.pretrain.card import card
from atelier.policies.janus.pretrain.evaluate import Exam
from atelier.policies.janus.pretrain.painter import Painter
from atelier.policies.pretraining.snapshots import LOG, install, read_record

log = logging.getLogger(__name__)
MEASURE_SEED = 1000  # other scenes and other draws than those that chose the snapshot


def promote_snapshot(snapshot: Path, target: Path, heldout: int) -> None:
    """Replace `target` by `snapshot`, what it measures here, and README.md.

    Raises:
        DataError: not a snapshot, or more than `SIZE_LIMIT` bytes.
    """
    record = read_record(snapshot)
    whole = snapshot.parent / LOG
    if whole.is_file():  # what became of the run after the snapshot
        record["curve"] = json.loads(whole.read_text())["curve"]
    record["measured"] = measure(snapshot, heldout)
    log.info("measured on this machine: %s", record["measured"])
    install(snapshot, target, record, card(record))


def measure(folder: Path, heldout: int, seed: int = MEASURE_SEED) -> dict[str, Any]:
    """What the checkpoint in a folder can do, loaded as anybody would load it.

    Raises:
        DataError: it does not load in float32.
    """
    model = JanusForConditionalGeneration.from_pretrained(folder).eval()
    if model.dtype != torch.float32:
        raise DataError(f"{folder}: loads as {model.dtype}, expected float32")
    painter = Painter(model, JanusProcessor.from_pretrained(folder).tokenizer)
    with ThreadPoolExecutor(1) as executor:
        exam = Exam(heldout, seed, executor)
        found, _ = exam.all(painter)
        return {"heldout": heldout, "ceiling": exam.ceiling(painter), **found}
