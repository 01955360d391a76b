"""From what the trainer wrote of its steps to rates, shares of the peak and gains. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.arithmetic import Arithmetic
from benchmarks.speed_cases import Load

Facts = dict[str, Any]
PHASES = ("rollout", "score", "update")
GAINED = ("rollout", "update", "epoch")
LEAST_GAIN = 1.03  # below it two runs on one machine differ as much


def figures(
    rows: Sequence[Mapping[str, float]],
    events: Sequence[Mapping[str, Any]],
    load: Load,
    work: Arithmetic,
    peak: float,
) -> Facts:
    """Of the timed steps.

    Args:
        rows: of metrics.jsonl, those of the timed steps.
        events: of events.jsonl.
        work: operations of a row.
        peak: operations a second that a share of the peak is of.

    Returns:
        Medians in seconds (`epoch`: the whole step, `rest`: what no phase is), rates a second,
        shares of the peak, peak_gib (None on a CPU), and the replay gap.
    """
    seconds = {phase: _median(row[f"time/{phase}"] for row in rows) for phase in PHASES}
    seconds["epoch"] = _median(row["time/step"] for row in rows)
    seconds["rest"] = _median(
        row["time/step"] - sum(row[f"time/{phase}"] for phase in PHASES) for row in rows
    )
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
