"""Finished runs whose scores are given, for what compares runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atelier.evaluation.results import summarize
from atelier.stages.run_file import read_run
from atelier.tracking.run_directory import RunDirectory, write_json
from tests.support.fake_run import open_fake_run, write_evaluation, write_record, write_steps

METRICS = ("similarity", "exact", "gold", "dark_share")
Scores = NDArray[np.float64]


def scored_run(
    root: Path, after: Scores, *overrides: str, before: Scores | None = None
) -> RunDirectory:
    """A run whose final similarity of prompt i is after[i], and others' follow from it.

    Args:
        after: [prompts]; NaN is a score that could not be had.
        before: the same before training; default: 0.5 everywhere.
    """
    run = open_fake_run(root, "sqlite:///unused.db", *overrides)
    write_record(run, "prepare", outputs={"train.parquet": "a" * 64, "heldout.parquet": "b" * 64})
    write_scores(run.baseline, np.full(len(after), 0.5) if before is None else before)
    write_scores(run.evaluate, after)
    identity = {"digest": read_run(run)["digests"]["evaluate"], "inputs": {}}
    write_record(run, "evaluate", identity=identity)
    write_steps(run, range(1, 4))
    for step, level in ((0, 0.5), (2, 0.6)):
        write_evaluation(run.periodic_evaluation("ocr", step), level)
    return run


def write_scores(folder: Path, scores: Scores) -> None:
    """An evaluation of one metric and others that follow it; its images are one grey each."""
    write_evaluation(folder, 0.5, prompts=len(scores))
    rows: list[dict[str, Any]] = []
    for line, value in zip((folder / "scores.jsonl").read_text().splitlines(), scores, strict=True):
        score = None if np.isnan(value) else float(value)
        derived = {
            "similarity": score,
            "exact": score if score is None else float(score > 0.7),
            "gold": score if score is None else score / 2,
            "dark_share": 0.01,
        }
        rows.append(json.loads(line) | derived)
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {"suite": "ocr", "images": len(rows), "reader": "r/1"}
    write_json(folder / "summary.json", summary | {"metrics": summarize(rows, METRICS, 100)})
