"""A snapshot becomes the embedded model: copied, checked, measured on this machine, with a card."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from atelier.policies.deepgen.pretrain.card import CARD
from atelier.policies.deepgen.pretrain.exam import Exam
from atelier.policies.deepgen.pretrain.options import Options
from atelier.policies.deepgen.pretrain.run import GUIDANCE
from atelier.policies.deepgen.pretrain.snapshot import load_snapshot
from atelier.policies.deepgen.pretrain.trainer import trained_parts
from atelier.policies.pretraining.options import command
from atelier.policies.pretraining.snapshots import RECORD, SAMPLES, install, read_record

log = logging.getLogger(__name__)
MODULE = "atelier.policies.deepgen.pretrain"
MEASURE_SEED = 1000  # other scenes and other noise than those that chose the snapshot


def promote_snapshot(snapshot: Path, target: Path, prompts: int) -> None:
    """Replace `target` by `snapshot` plus README.md.

    Raises:
        DataError: not a snapshot, or more than `SIZE_LIMIT` bytes.
        ConfigError: it does not load.
    """
    record = read_record(snapshot)
    measured = measure(snapshot, prompts, record["options"]["evaluate_steps"])
    log.info("measured on this machine: %s", measured)
    install(snapshot, target, record, _card(record, measured, prompts))


def measure(folder: Path, prompts: int, steps: int) -> dict[str, dict[str, float]]:
    """What the model in a folder can do, without guidance and with it, and what a perfect one
    could."""
    model = load_snapshot(folder)
    with ThreadPoolExecutor(1) as executor:
        exam = Exam(model, prompts, MEASURE_SEED, executor)
        ways = {"no guidance": 1.0, f"guidance {GUIDANCE:g}": GUIDANCE}
        found = {
            name: exam.scores(exam.paint(trained_parts(model), steps, guidance))[0]
            for name, guidance in ways.items()
        }
        return {**found, "true renders": exam.renders()}


def _card(record: dict[str, Any], measured: dict[str, dict[str, float]], prompts: int) -> str:
    chosen, options = record["snapshot"], record["options"]
    before = record.get("start")
    return CARD.format(
        step=chosen["step"],
        before="" if before is None else f", after {before['step']} such steps of another run",
        batch=options["batch"],
        seconds=round(chosen["seconds"]),
        images=options["images"],
        device=record["device"],
        torch=record["torch"],
        parameters=", ".join(f"{name} {count:,}" for name, count in record["parameters"].items()),
        command=command(MODULE, Options, options, leave_out=("autoencoder", "tokenizer")),
        prompts=prompts,
        steps=options["evaluate_steps"],
        rows="\n".join(_row(name, one) for name, one in measured.items()),
        samples=SAMPLES,
        record=RECORD,
    )


def _row(name: str, item: dict[str, Any]) -> str:
    shown = (item[one] for one in ("similarity", "exact", "facts", "right"))
    return f"| {name} | " + " | ".join(f"{value:.3f}" for value in shown) + " |"
