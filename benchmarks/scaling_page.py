"""What benchmarks/scaling.py found, as a page for each model and device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.scaling_figures import Facts, efficiency, equivalence, measured

COLUMNS = (
    "engine",
    "ranks",
    "images a step",
    "images/s",
    "efficiency",
    "step: rollout + score + update + rest, s",
    "collectives in the update",
    "peak GiB, the plan",
    "from one rank: loss, gradient's norm",
)
NOTES = """\
A step is one of the trainer's, without the checkpoint after it. Medians of {steps} steps after a
first one. The efficiency is images a second and rank, beside those of one rank by DDP. Collectives:
the share of one more step's update, profiled on rank 0, in which a collective runs there, from its
beginning to its end, waiting for later ranks included; after the comma, where a GPU tells it, the
share in which nothing else does. Peak: of tensors, on the rank that takes most; the plan is that of
`atelier plan`. The last column is the difference to one rank by DDP with the same images, of the
first step, and in brackets the largest of all steps: of losses as it is (they are means of
advantages of about 1, and 0 where a step has one update and no other terms), of norms as a share.
Both are of a step's last update; where it has several, AdamW has by then made steps of full size of
gradients that are nothing but rounding. A dash: not measured, or not known there.
"""
TIGHT = """\
These ranks had {cores} CPU cores together: that more ranks are not faster says nothing else.
"""


def page(results: Sequence[Facts], per_rank: int, in_all: int) -> str:
    """Of one model on one device.

    Args:
        results: of scaling.py, of this model and device.
        per_rank: prompts of a rank where the work of a rank is fixed.
        in_all: prompts of a step where that is fixed.
    """
    about, done = results[0], measured(results)
    weak = [one for one in done if one["prompts"] == per_rank * one["ranks"]]
    strong = [one for one in done if one["prompts"] == in_all]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    parts = [
        f"# `{about['recipe']}`, {about['size']} shape, on {about['device']}, {about['date']}",
        f"    {about['command']}",
        f"Random weights. {versions}. Settings beside the recipe's: {about['settings']}.",
        *_tables(f"The work of a rank is fixed ({per_rank} prompts a step):", weak, done, per_rank),
        *_tables(f"The work of a step is fixed ({in_all} prompts):", strong, done, in_all),
        NOTES.format(**about),
        *([TIGHT.format(**about)] if about["device"] == "CPU" else []),
        *_failures(results),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _tables(title: str, rows: Sequence[Facts], done: Sequence[Facts], one: int) -> list[str]:
    return [title, table(rows, done, one)] if rows else []


def page_name(one: Facts) -> str:
    """scaling_MODEL_HARDWARE_DATE.md, of letters that any file system takes."""
    words = ("scaling", f"{one['case']} {one['size']}", one["device"], one["date"])
    return "_".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words) + ".md"


def write_page(folder: Path, results: Sequence[Facts], per_rank: int, in_all: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / page_name(results[0])
    path.write_text(page(results, per_rank, in_all), encoding="utf-8")
    return path


def table(rows: Iterable[Facts], done: Sequence[Facts], prompts_of_one: int) -> str:
    """By engine and ranks; `prompts_of_one` are those of the rank that efficiencies are of."""
    ordered = sorted(rows, key=lambda one: (one["engine"], one["ranks"]))
    cells = [_row(one, done, prompts_of_one) for one in ordered]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(one: Facts, done: Sequence[Facts], prompts_of_one: int) -> list[str]:
    seconds, efficient = one["seconds"], efficiency(one, done, prompts_of_one)
    return [
        one["engine"],
        str(one["ranks"]),
        str(one["images"]),
        f"{one['images_per_second']:.2f}",
        "-" if efficient is None else f"{efficient:.3f}",
        f"{seconds['step']:.2f}: "
        + " + ".join(f"{seconds[name]:.2f}" for name in ("rollout", "score", "update", "rest")),
        _collectives(one),
        "-" if one["peak_gib"] is None else f"{one['peak_gib']:.1f}, {one['predicted_gib']:.1f}",
        _difference(one, done),
    ]


def _collectives(one: Facts) -> str:
    found = one["communication"]
    if found is None:
        return "-"
    exposed = "" if found["exposed"] is None else f", {found['exposed']:.1%}"
    return f"{found['share']:.1%}{exposed}"


def _difference(one: Facts, done: Sequence[Facts]) -> str:
    found = equivalence(one, done)
    if found is None:
        return "-"
    parts = (found[name] for name in ("loss", "grad_norm"))
    return ", ".join(f"{part['first']:.1e} ({part['most']:.1e})" for part in parts)


def _failures(results: Sequence[Facts]) -> list[str]:
    lines = [
        f"- {one['engine']}, {one['ranks']} ranks, {one['prompts']} prompts: {one['failed']}"
        for one in results
        if "failed" in one
    ]
    return ["Not measured:", "\n".join(lines)] if lines else []
