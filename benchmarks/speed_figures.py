"""From what the trainer wrote of its steps to rates, shares of the peak and gains. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.arithmetic import Arithmetic
from benchmarks.speed_cases import Load

Facts = dict[str, Any]
PHASES = ("rollout", "decode", "score", "update")
GAINED = ("rollout", "update", "epoch")
LEAST_GAIN = 1.03  # below it two runs on one machine differ as much


def figures(
    rows: Sequence[Mapping[str, float]],
    phases: Sequence[Mapping[str, float]],
    events: Sequence[Mapping[str, Any]],
    load: Load,
    work: Arithmetic,
    peak: float,
) -> Facts:
    """Of the timed steps.

    Args:
        rows: of metrics.jsonl, those of the timed steps.
        phases: of the same steps, seconds of each; `decode` is a part of the others.
        events: of events.jsonl.
        work: operations of a row.
        peak: operations a second that a share of the peak is of.

    Returns:
        Medians in seconds (`rollout`: without decoding, `epoch`: the whole step, `rest`: what no
        phase is), rates a second, shares of the peak, peak_gib (None on a CPU), and the replay gap.
    """
    parts = [_parts(row, one) for row, one in zip(rows, phases, strict=True)]
    seconds = {name: _median(one[name] for one in parts) for name in (*PHASES, "rest", "epoch")}
    operations = _operations(load, work)
    return {
        "seconds": seconds,
        "images_per_second": load.images / seconds["rollout"],
        "sample_steps_per_second": load.images * load.actions / seconds["update"],
        "mfu": {name: operations[name] / seconds[name] / peak for name in operations},
        "peak_gib": max(
            (row["memory/peak_gib"] for row in rows if "memory/peak_gib" in row), default=None
        ),
        "gap": _gap(rows, events),
    }


def _parts(row: Mapping[str, float], phases: Mapping[str, float]) -> dict[str, float]:
    """Of a step, seconds of what is done one after another, and of all of it."""
    parts = {name: phases[name] for name in PHASES}
    parts["rollout"] -= parts["decode"]
    epoch = row["time/step"]
    return {**parts, "rest": epoch - sum(parts.values()), "epoch": epoch}


def _operations(load: Load, work: Arithmetic) -> dict[str, int]:
    rollout = load.rollout_rows * work.forward
    backward = work.both - work.forward
    update = load.replay_rows * work.forward + load.gradient_rows * backward
    return {"rollout": rollout, "update": update, "epoch": rollout + update}


def _gap(
    rows: Sequence[Mapping[str, float]], events: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """|ratio - 1| between rollout and replay: of every step where old log-probs are recomputed,
    else of the first one, which the trainer's gate looked at."""
    name = "ratio/rollout_gap_"
    if f"{name}mean" in rows[0]:
        return {
            "mean": statistics.mean(row[f"{name}mean"] for row in rows),
            "max": max(row[f"{name}max"] for row in rows),
        }
    gate = next(one for one in events if one["event"] == "replay_gate")
    return {"mean": gate["mean"], "max": gate["max"]}


def gains(stock: Facts, fast: Facts) -> dict[str, float]:
    """How many times as fast: of the rollout, the update and the whole step."""
    return {name: stock["seconds"][name] / fast["seconds"][name] for name in GAINED}


def gain_words(gain: float) -> str:
    return f"{gain:.2f}" if gain > LEAST_GAIN else f"{gain:.2f} (no gain)"


def _median(values: Any) -> float:
    return float(statistics.median(values))
