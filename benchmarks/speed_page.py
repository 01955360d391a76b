"""What benchmarks/trainer_speed.py found, as tables and as a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed_cases import CASES
from benchmarks.speed_figures import GAINED, PHASES, Facts, gain_words

_COLUMNS = (
    "case",
    "transformer",
    "rollout, images/s",
    "update, sample-steps/s",
    "epoch, s",
    "rollout + decode + score + update + rest, s",
    "MFU: rollout, update, epoch",
    "peak GiB, the plan",
    "replay gap: mean, max",
    "times stock: rollout, update, epoch",
)
_IDLE_COLUMNS = ("case", "transformer", "profiled, s", "idle", "idle of phases", "longest gaps")

NOTES = """\
An epoch is one training step by the trainer itself, without the checkpoint after it: {images}
images of 2 prompts, two updates. Medians of {steps} steps after a first one, in which blocks are
compiled; phases by the GPU's clock, decoding apart from the rollout. A sample-step is a trained
action of an image; all that the update does counts, old log-probs computed again and the reference,
too. MFU is the transformer's own arithmetic (nothing for adapters, the autoencoder and rewards) by
the peak, a square product of side {side} measured in the same process: {peak:.3g} TFLOP/s. The plan
is what `atelier plan` says of rollout, replay and update. The gap is |ratio - 1| of a rollout that
is replayed before any update. 3 % are no gain.
"""
IDLE_NOTES = """\
One more step under the profiler, which slows down a host that is waited for: idle is the share of
the time in which the GPU neither computes nor copies.
"""


def table(results: Sequence[Facts]) -> str:
    """A row each, in the order given."""
    return _table(_COLUMNS, (_row(one) for one in results))


def idle_table(results: Sequence[Facts]) -> str:
    return _table(_IDLE_COLUMNS, (_idle_row(one) for one in results if one.get("waiting")))


def page(about: Facts, results: Sequence[Facts]) -> str:
    """With all that is needed to measure again.

    Args:
        about: of `trainer_speed.about`.
    """
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    idle = [idle_table(results), IDLE_NOTES] if any(one.get("waiting") for one in results) else []
    parts = [
        f"# Training steps of {about['model']} on {about['device']}, {about['date']}",
        f"    {about['command']}",
        f"Random weights, {about['text']} text encoders. {versions}. Rewards: {about['rewards']},"
        f" of {about['pictures']}.",
        table(results),
        NOTES.format(**about),
        *idle,
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def page_name(about: Facts) -> str:
    """MODEL_HARDWARE_DATE.md, of letters that any file system takes; behind the model the cases,
    where they are not all, and what is real of its text encoders and pictures."""
    cases = () if set(about["cases"]) == set(CASES) else about["cases"]
    more = ["real text"] if about["text"] == "real-size" else []
    more += ["words"] if about["pictures"] == "words" else []
    words = (" ".join((about["model"], *cases, *more)), about["device"], about["date"])
    return "_".join(re.sub(r"[^a-z0-9.]+", "-", one.lower()).strip("-") for one in words) + ".md"


def write_page(folder: Path, about: Facts, results: Sequence[Facts]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / page_name(about)
    path.write_text(page(about, results), encoding="utf-8")
    return path


def _table(columns: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(one: Facts) -> list[str]:
    seconds, gap = one["seconds"], one["gap"]
    predicted = one["predicted_gib"]
    peak = "-" if one["peak_gib"] is None else f"{one['peak_gib']:.1f}, {predicted:.1f}"
    return [
        one["case"],
        one["way"],
        f"{one['images_per_second']:.2f}",
        f"{one['sample_steps_per_second']:.1f}",
        f"{seconds['epoch']:.2f}",
        " + ".join(f"{seconds[name]:.2f}" for name in (*PHASES, "rest")),
        _shares(one["mfu"][name] for name in GAINED),
        peak,
        f"{gap['mean']:.1e}, {gap['max']:.1e}",
        ", ".join(gain_words(one["gains"][name]) for name in GAINED) if "gains" in one else "",
    ]


def _idle_row(one: Facts) -> list[str]:
    waiting = one["waiting"]
    return [
        one["case"],
        one["way"],
        f"{waiting['seconds']:.2f}",
        _shares([waiting["idle"]]),
        ", ".join(f"{name} {_shares([share])}" for name, share in waiting["phases"].items()),
        ", ".join(f"{gap['seconds'] * 1000:.1f} ms ({gap['phase']})" for gap in waiting["gaps"]),
    ]


def _shares(values: Any) -> str:
    return ", ".join(f"{value:.1%}" for value in values)
