"""From what the trainer wrote of its steps to speeds, efficiencies and differences. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Facts = dict[str, Any]
PHASES = ("rollout", "score", "update")
# What runs that are compared agree in; and what says which run it is.
ALIKE = ("case", "size", "device", "overrides", "steps")
KEY = (*ALIKE, "engine", "ranks", "prompts")


def figures(rows: Sequence[Mapping[str, float]], steps: int, images: int) -> Facts:
    """Of a run's steps, the first of which does not count, since it compiles and allocates.

    Args:
        rows: of metrics.jsonl.
        steps: that are timed, after the first.
        images: of a step, on all ranks.

    Returns:
        Medians in seconds (`rest`: what no phase is), images a second, peak_gib of the rank that
        takes most (None on a CPU), and the loss and the gradient's norm of every step.
    """
    timed, all_steps = rows[1 : 1 + steps], rows[: 1 + steps]
    seconds = {phase: _median(row[f"time/{phase}"] for row in timed) for phase in PHASES}
    seconds["step"] = _median(row["time/step"] for row in timed)
    seconds["rest"] = _median(
        row["time/step"] - sum(row[f"time/{phase}"] for phase in PHASES) for row in timed
    )
    peaks = [row["memory/peak_gib"] for row in all_steps if "memory/peak_gib" in row]
    return {
        "seconds": seconds,
        "images_per_second": images / seconds["step"],
        "peak_gib": max(peaks, default=None),
        "loss": [row["loss/policy"] for row in all_steps],
        "grad_norm": [row["grad_norm"] for row in all_steps],
    }


def key(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which run it is."""
    return tuple(one[name] for name in KEY)


def measured(results: Iterable[Facts]) -> list[Facts]:
    """Those that came to an end, each run once: the last one of it counts."""
    return list({key(one): one for one in results if "failed" not in one}.values())


def efficiency(one: Facts, results: Sequence[Facts], prompts: int) -> float | None:
    """Images a second and rank, beside those of one rank with so many prompts; None where that was
    not measured."""
    alone = _alone(one, results, prompts)
    if alone is None:
        return None
    return float(one["images_per_second"] / one["ranks"] / alone["images_per_second"])


def equivalence(one: Facts, results: Sequence[Facts]) -> Facts | None:
    """How far from one rank with the same prompts: losses, and gradients' norms as a share of its,
    of the first step and at most. None where that was not measured."""
    alone = _alone(one, results, one["prompts"])
    if alone is None or alone is one:
        return None
    losses = [abs(a - b) for a, b in zip(one["loss"], alone["loss"], strict=False)]
    norms = [abs(a / b - 1) for a, b in zip(one["grad_norm"], alone["grad_norm"], strict=False)]
    return {
        "loss": {"first": losses[0], "most": max(losses)},
        "grad_norm": {"first": norms[0], "most": max(norms)},
    }


def _alone(one: Facts, results: Sequence[Facts], prompts: int) -> Facts | None:
    """One rank by DDP with so many prompts, and all else alike."""
    for other in results:
        is_alone = other["ranks"] == 1 and other["engine"] == "ddp" and other["prompts"] == prompts
        if is_alone and all(other[name] == one[name] for name in ALIKE):
            return other
    return None


def _median(values: Iterable[float]) -> float:
    return float(statistics.median(values))
