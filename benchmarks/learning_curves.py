"""Held-out learning curves of many small runs, side by side on one machine.

    python benchmarks/learning_curves.py --out DIR --parallel 8 --recipe tiny/flow-grpo-fast \
        --set launch.device=cuda --variant train.learning_rate=2e-5 --variant "train.seed=2 ..."

Each variant is a space-separated list of overrides on top of --set; `recipe=NAME` among them takes
another recipe. All variants share one set of prompts; the base (--baseline) and every periodic
evaluation are scored the same way. Writes curves.json and prints a table: the curve, images trained
on a second of training (without evaluation), and seconds of training until held-out similarity
reached --target. Needs neither Prefect nor MLflow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from atelier.config.resolve import load_stage_config, resolve, write_stage_configs
from atelier.data.prepare import prepare
from atelier.data.prompts import read_prompts
from atelier.evaluation import ocr
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory

METRICS = ("similarity", "exact", "gold")


def baseline(root: Path, recipe: str, overrides: list[str]) -> dict[str, float]:
    """Scores of the untrained policy on the same prompts and noise."""
    from atelier.evaluation.requests import evaluation_key
    from atelier.policies.sd3.policy import SD3Policy

    run, config = prepared(root, recipe, overrides, 99), resolve(recipe, overrides)
    policy = SD3Policy.load(
        config.policy, config.rollout, config.evaluation, config.train.seed, "cpu"
    )
    prompts = read_prompts(run.data / "heldout.parquet")[: config.evaluation.periodic_prompts]
    images = policy.generate(
        policy.module,
        prompts,
        [evaluation_key(config.evaluation.seed, prompt) for prompt in prompts],
    )
    evaluation = ocr.evaluate(images, prompts, config.evaluation)
    return {name: evaluation.mean(name) for name in METRICS}


def prepared(root: Path, recipe: str, overrides: list[str], number: int) -> RunDirectory:
    run = RunDirectory(root / f"run-{number:02d}")
    config = resolve(recipe, overrides)
    write_stage_configs(config, run)
    prepare(config.data, run.data)
    return run


def score(run: RunDirectory, folder: Path) -> dict[str, float]:
    """One point of a curve, scored in a process of its own: reading takes longer than training."""
    config = load_stage_config(run.config("train"))
    prompts = read_prompts(run.data / "heldout.parquet")[: config.evaluation.periodic_prompts]
    evaluation = ocr.score_folder(folder, prompts, config.evaluation)
    step = int(folder.name.removeprefix("step-"))
    return {"step": step, **{name: evaluation.mean(name) for name in METRICS}}


def seconds_to(
    target: float, curve: list[dict[str, float]], rows: list[dict[str, Any]]
) -> float | None:
    """Seconds of training up to the first point of the curve at or above `target`."""
    reached = [int(point["step"]) for point in curve if point["similarity"] >= target]
    if not reached:
        return None
    return round(sum(row["time/step"] for row in rows[: reached[0]]), 1)


def split_variant(variant: str, recipe: str) -> tuple[str, list[str]]:
    """A variant's recipe and overrides."""
    parts = variant.split()
    named = [part.removeprefix("recipe=") for part in parts if part.startswith("recipe=")]
    return (named or [recipe])[-1], [part for part in parts if not part.startswith("recipe=")]


def run_variant(
    root: Path, recipe: str, overrides: list[str], number: int, gpus: int, target: float
) -> dict[str, Any]:
    """Train and score one variant; variants take turns on the GPUs."""
    visible = {"CUDA_VISIBLE_DEVICES": str(number % gpus)} if gpus else {}
    run = prepared(root, recipe, overrides, number)
    config = resolve(recipe, overrides)
    trainer = ["-m", "atelier.training"]
    if config.launch.processes > 1:
        ranks = ["--nproc-per-node", str(config.launch.processes), "atelier.training"]
        trainer = ["-m", "atelier.processes.torchrun", *ranks]
    started = time.monotonic()
    with (run.root / "trainer.log").open("w") as log:
        code = subprocess.run(
            [sys.executable, *trainer, f"--config={run.config('train')}", f"--run={run.root}"],
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **visible},
        ).returncode
    seconds = time.monotonic() - started
    folders = sorted((run.train / "evaluation" / "ocr").glob("step-*"))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as scorers:
        curve = list(scorers.map(score, [run] * len(folders), folders))
    rows = [row for _, row in read_json_lines(run.metrics)]
    images = config.train.prompts_per_step * config.rollout.group_size
    return {
        "recipe": recipe,
        "overrides": overrides,
        "images_per_second": round(images * len(rows) / sum(row["time/step"] for row in rows), 2)
        if rows
        else None,
        "seconds_to_target": seconds_to(target, curve, rows),
        "exit_code": code,
        "seconds": round(seconds, 1),
        "curve": curve,
        "last": rows[-1] if rows else None,
        "log_tail": (run.root / "trainer.log").read_text()[-400:] if code else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="tiny/flow-grpo-fast")
    parser.add_argument("--set", action="append", default=[], dest="common")
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--baseline", action="store_true", help="score the base first")
    parser.add_argument("--target", type=float, default=0.85, help="similarity to time")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to spread the variants over")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    variants = arguments.variant or [""]
    if arguments.baseline:
        before = baseline(arguments.out, arguments.recipe, arguments.common)
        sys.stdout.write(f"baseline {before}\n")
    with ThreadPoolExecutor(arguments.parallel) as pool:
        jobs = {}
        for number, variant in enumerate(variants):
            recipe, overrides = split_variant(variant, arguments.recipe)
            own = (recipe, [*arguments.common, *overrides], number, arguments.gpus)
            job = pool.submit(run_variant, arguments.out, *own, arguments.target)
            jobs[job] = variant
        results = []
        for job in as_completed(jobs):
            result = job.result()
            results.append(result)
            (arguments.out / "curves.json").write_text(json.dumps(results, indent=1))
            points = "  ".join(
                f"{point['step']}:{point['similarity']:.3f}/{point['exact']:.2f}"
                f"/{point['gold']:.2f}"
                for point in result["curve"]
            )
            line = (
                f"{jobs[job] or '(recipe)'}  exit {result['exit_code']}  {result['seconds']} s  "
                f"{result['images_per_second']} images/s  target {result['seconds_to_target']} s"
            )
            sys.stdout.write(f"{line}  {points} {result['log_tail']}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
