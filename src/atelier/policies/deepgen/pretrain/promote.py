"""A snapshot becomes the embedded model: copied, checked, measured on this machine, with a card."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from atelier.config.facts.connector_fit import require_fitting
from atelier.config.schema import PolicyConfig
from atelier.policies.deepgen.layout import Model
from atelier.policies.deepgen.pretrain.card import CARD
from atelier.policies.deepgen.pretrain.exam import Exam
from atelier.policies.deepgen.pretrain.options import Options
from atelier.policies.deepgen.pretrain.trainer import trained_parts
from atelier.policies.deepgen.source import open_source
from atelier.policies.deepgen.transformer import masked
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


def measure(folder: Path, prompts: int, steps: int) -> dict[str, float]:
    """What the model in a folder can do, loaded as a policy loads it."""
    source = open_source(PolicyConfig(family="deepgen", path=str(folder)))
    model = Model(
        masked(source.transformer("float32")),
        source.vae(),
        source.scheduler(),
        source.vlm("float32"),
        source.bridge(),
        source.tokenizer(),
        source.template(),
    )
    require_fitting(model.bridge.shape, model.vlm.config.to_dict(), model.transformer.config)
    with ThreadPoolExecutor(1) as executor:
        exam = Exam(model, prompts, MEASURE_SEED, executor)
        return exam.scores(exam.paint(trained_parts(model), steps))[0]


def _card(record: dict[str, Any], measured: dict[str, float], prompts: int) -> str:
    chosen, options = record["snapshot"], record["options"]
    rows = [
        _row("no guidance", chosen),
        _row("guidance 3", chosen["guided"]),
        _row("true renders", record["ceiling"]),
        _row(f"{prompts} others of each, on a CPU", measured),
    ]
    return CARD.format(
        step=chosen["step"],
        batch=options["batch"],
        seconds=round(chosen["seconds"]),
        images=options["images"],
        device=record["device"],
        torch=record["torch"],
        parameters=", ".join(f"{name} {count:,}" for name, count in record["parameters"].items()),
        command=command(MODULE, Options, options, leave_out=("autoencoder", "tokenizer")),
        prompts=options["evaluate_prompts"],
        steps=options["evaluate_steps"],
        rows="\n".join(rows),
        samples=SAMPLES,
        record=RECORD,
    )


def _row(name: str, item: dict[str, Any]) -> str:
    shown = (item[one] for one in ("similarity", "exact", "facts", "right"))
    return f"| {name} | " + " | ".join(f"{value:.3f}" for value in shown) + " |"
