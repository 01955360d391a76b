"""A run directory as a finished or unfinished pipeline leaves it, without running one.

For what only reads a run: the MLflow mirror and the report page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from atelier.config.digest import stage_digest
from atelier.config.resolve import load_stage_config, resolve, write_stage_configs
from atelier.evaluation.results import Evaluation, compare, summarize
from atelier.report.run_data import stage_folder
from atelier.stages.run_file import write_data, write_run
from atelier.tracking.run_directory import RunDirectory, write_json

METRICS = ("similarity", "gold")


def open_fake_run(root: Path, uri: str, *overrides: str) -> RunDirectory:
    """A new run directory with configuration and run.json, mirrored to `uri`."""
    run = RunDirectory(root)
    config = resolve("tiny/base", [f"tracking.mlflow_uri={uri}", *overrides])
    write_stage_configs(config, run)
    write_run(run, config, overrides, root.name)
    return run


def write_steps(run: RunDirectory, steps: Iterable[int], seconds: float = 1.0) -> None:
    """Append training metrics; `seconds` is what differs between two lives of a trainer."""
    run.train.mkdir(parents=True, exist_ok=True)
    with run.metrics.open("a") as file:
        for step in steps:
            record = {"step": step, "reward/mean": step / 100, "kl": "nan", "time/step": seconds}
            file.write(json.dumps(record) + "\n")


def write_evaluation(folder: Path, level: float, prompts: int = 4) -> Evaluation:
    """Images and scores of some prompts, all near one level."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for index in range(prompts):
        name = f"images/{index:05d}.png"
        shade = int(255 * level) - index
        Image.fromarray(np.full((16, 16, 3), shade, np.uint8)).save(folder / name)
        score = level + 0.01 * index
        rows.append(
            {"prompt_id": index, "dataset_id": 0, "prompt": f"<{index}>", "target": "AB"}
            | {"image": name, "text": "A&B", "similarity": score, "gold": score, "missing": None}
        )
    summary = {"suite": "ocr", "images": prompts, "metrics": summarize(rows, METRICS, 100)}
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / "summary.json", summary)
    return Evaluation(rows, summary)


def write_comparison(run: RunDirectory, before: Evaluation, after: Evaluation) -> None:
    rows = [asdict(one) for one in compare(before, after, 100)]
    write_json(run.evaluate / "comparison.json", rows)


def write_record(
    run: RunDirectory, stage: str, status: str = "done", started: int = 0, **entries: Any
) -> None:
    """stage.json of a stage that took five seconds, of the configuration that the run has."""
    clock = "2026-01-01T00:00:{:02d}.000+00:00"
    identity = {"digest": stage_digest(load_stage_config(run.config(stage)), stage), "inputs": {}}
    write_json(
        stage_folder(run, stage) / "stage.json",
        {"stage": stage, "identity": identity, "status": status, "started": clock.format(started)}
        | {"ended": clock.format(started + 5), "seconds": 5.0, "summary": {}, "outputs": {}}
        | entries,
    )


def finish(run: RunDirectory, level: float = 0.7) -> None:
    """All that a whole pipeline leaves, of three steps."""
    outputs = {"train.parquet": "a" * 64, "heldout.parquet": "b" * 64}
    write_data(run, {name: digest[:32] for name, digest in outputs.items()}, None)
    write_record(run, "prepare", outputs=outputs, summary={"train": {"prompts": 8}})
    before = write_evaluation(run.baseline, 0.5)
    write_record(run, "baseline", started=5, summary={"similarity": 0.5})
    write_steps(run, range(1, 4))
    for step, at in ((0, 0.5), (2, level)):
        write_evaluation(run.periodic_evaluation("ocr", step), at)
    write_record(run, "train", started=10)
    write_comparison(run, before, write_evaluation(run.evaluate, level))
    write_record(run, "evaluate", started=15, summary={"similarity": level})
    (run.export / "merged").mkdir(parents=True)
    (run.export / "merged/weights.bin").write_bytes(b"weights")
    write_record(run, "export", started=20)
    run.report.mkdir()
    (run.report / "index.html").write_text("<!doctype html>")
    write_record(run, "report", started=25)
