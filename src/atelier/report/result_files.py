"""The result and the curves of a run as small plain files: for `dvc metrics`, `dvc plots` and
spreadsheets, which read neither a page nor JSON lines.

    metrics.json    the held-out means after training and what they gained; the last step's reward
    training.csv    one line a training step
    heldout.csv     one line a periodic evaluation, step 0 first, and of how many prompts it is,
                    which may be fewer than of the means in metrics.json
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atelier.config.resolve import load_stage_config
from atelier.evaluation.results import HEADLINE
from atelier.report.comparison import read_comparison
from atelier.report.metric_names import direction_of
from atelier.report.run_data import Evaluation, metric_records, periodic_evaluations, step_series
from atelier.tracking.run_directory import RunDirectory, write_json, write_text_atomically

METRICS, TRAINING, HELDOUT = "metrics.json", "training.csv", "heldout.csv"


def write_result_files(run: RunDirectory, folder: Path) -> None:
    """Write the three files into `folder`."""
    steps = metric_records(run)
    suite = load_stage_config(run.config("report")).evaluation.suite
    periodic = [one for one in periodic_evaluations(run) if one.suite == suite]
    write_json(folder / METRICS, _metrics(run, steps))
    training = [{"step": one["step"], **step_series(one)} for one in steps]
    write_text_atomically(folder / TRAINING, _as_csv(training))
    heldout = [
        {"step": one.step, "prompts": one.prompts, "headline": _headline(one), **one.means}
        for one in periodic
    ]
    write_text_atomically(folder / HELDOUT, _as_csv(heldout))


def _metrics(run: RunDirectory, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Only what has a better and a worse: a table of experiments is read by its columns."""
    rows = [row for row in read_comparison(run) if direction_of(row.metric) and not row.is_part]
    return {
        "heldout": {row.metric: row.after for row in rows},
        "gain": {row.metric: row.difference for row in rows},
        "reward": step_series(steps[-1]).get("reward/mean") if steps else None,
    }


def _headline(one: Evaluation) -> float | None:
    """The suite's first metric, under one name for every suite: what is plotted."""
    return one.means.get(one.summary.get("headline", HEADLINE))


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """With a column for every key of any row; what a row lacks stays empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row)) or ["step"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
