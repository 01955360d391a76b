"""The points of learning curves scored again, by a judge that no run was trained on.

    python -m atelier.judge_models.tiny train --out JUDGE --seed 2   # a sibling of the embedded one
    python benchmarks/held_out_judge.py DIR --judge JUDGE            # DIR: of learning_curves.py

Adds held_out/METRIC to every point in DIR/curves.json: what judges' metrics are by that one.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from atelier.config.resolve import load_stage_config
from atelier.data.prompts import read_prompts
from atelier.evaluation.evaluate import evaluate
from atelier.evaluation.files import read_completions, read_images
from atelier.evaluation.judging import suite_judge
from atelier.evaluation.requests import image_requests
from atelier.tracking.run_directory import RunDirectory


def scored(root: Path, step: int, model: str) -> dict[str, float]:
    """Means of the metrics of a run's images of a step."""
    run = RunDirectory(root)
    config = load_stage_config(run.config("train"))
    suite = config.evaluation
    assert suite.judge is not None, f"{root}: its suite asks no judge"
    folder = run.periodic_evaluation(suite.suite, step)
    prompts = read_prompts(run.data / "heldout.parquet")[: suite.periodic_prompts]
    files = [one.file for one in image_requests(prompts, suite)]
    judges = {suite.judge: config.judges[suite.judge].model_copy(update={"model": model})}
    with suite_judge(config, judges, root / "held_out" / str(step)) as judge:
        images, completions = read_images(folder, files), read_completions(folder, files)
        found = evaluate(images, prompts, suite, judge, completions)
    metrics = found.summary["metrics"].items()
    return {f"held_out/{name}": one["mean"] for name, one in metrics if name.startswith("judge")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--judge", required=True)
    parser.add_argument("--processes", type=int, default=4)
    arguments = parser.parse_args()
    file = arguments.out / "curves.json"
    results: list[dict[str, Any]] = json.loads(file.read_text())
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        jobs = [
            (point, pool.submit(scored, arguments.out / one["run"], point["step"], arguments.judge))
            for one in results
            for point in one["curve"]
        ]
        for point, job in jobs:
            point |= job.result()
    file.write_text(json.dumps(results, indent=1))
    sys.stdout.write(f"{len(jobs)} points scored by {arguments.judge}\n")


if __name__ == "__main__":
    main()
