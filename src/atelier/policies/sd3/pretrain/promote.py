"""A snapshot becomes the embedded model: copied, checked, measured on this machine, with a card."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from diffusers import StableDiffusion3Pipeline
from diffusers.utils import logging as diffusers_logging

from atelier.errors import DataError
from atelier.policies.pretraining.options import command
from atelier.policies.pretraining.snapshots import RECORD, SAMPLES, install, read_record
from atelier.policies.sd3.pretrain.card import CARD
from atelier.policies.sd3.pretrain.evaluate import WordTest
from atelier.policies.sd3.pretrain.images import heldout_words
from atelier.policies.sd3.pretrain.options import Options
from atelier.policies.sd3.pretrain.reading import summary

log = logging.getLogger(__name__)
MODULE = "atelier.policies.sd3.pretrain"
MEASURE_SEED = 1000  # other words and other noise than those that chose the snapshot


def promote_snapshot(snapshot: Path, target: Path, prompts: int) -> None:
    """Replace `target` by `snapshot` plus README.md.

    Raises:
        DataError: not a snapshot, or more than `SIZE_LIMIT` bytes.
    """
    diffusers_logging.set_verbosity_error()
    record, measured = read_record(snapshot), _measure(snapshot, prompts)
    log.info("measured on this machine: %s", measured)
    install(snapshot, target, record, _card(record, measured))


def _measure(snapshot: Path, prompts: int) -> dict[str, Any]:
    pipeline = StableDiffusion3Pipeline.from_pretrained(snapshot)
    pipeline.set_progress_bar_config(disable=True)
    for name, part in pipeline.components.items():
        if isinstance(part, torch.nn.Module) and part.dtype != torch.float32:
            raise DataError(f"{snapshot}/{name}: loads as {part.dtype}, expected float32")
    with ThreadPoolExecutor(1) as executor:
        test = WordTest(pipeline, heldout_words(prompts, MEASURE_SEED), executor, MEASURE_SEED)
        scores = test.read(test.generate(8))[0]
        return {"prompts": prompts, "steps": 8, **summary(scores)}


def _card(record: dict[str, Any], measured: dict[str, Any]) -> str:
    chosen, ceiling, options = record["snapshot"], record["ceiling"], record["options"]
    rows = [_row(name, chosen[name]) for name in chosen if name.endswith(" steps")]
    rows += [
        _row("8 steps, guidance 3", item)
        for item in chosen["schedules"]
        if "guidance_scale" in item
    ]
    rows += [
        _row("true renders", ceiling["renders"]),
        _row("true renders after the autoencoder", ceiling["round_trip"]),
    ]
    return CARD.format(
        step=chosen["step"],
        batch=options["batch"],
        seconds=round(chosen["seconds"]),
        images=options["images"],
        vae=json.dumps(record["vae"]),
        device=record["device"],
        torch=record["torch"],
        command=command(MODULE, Options, options, leave_out=("vae",)),
        prompts=options["evaluate_prompts"],
        rows="\n".join(rows),
        check=_row(f"{measured['prompts']} other words, 8 steps, on a CPU", measured),
        samples=SAMPLES,
        record=RECORD,
    )


def _row(name: str, item: dict[str, Any]) -> str:
    return f"| {name} | {item['similarity']:.3f} | {item['exact']:.3f} |"
