"""Held-out learning curves of many small runs, side by side on one machine.

    python -m benchmarks.learning_curves --out DIR --parallel 8 --recipe tiny/flow-grpo-fast \
        --set launch.device=cuda --variant train.learning_rate=2e-5 --variant "train.seed=2 ..."

Each variant is a space-separated list of overrides on top of --set; `recipe=NAME` among them takes
another recipe. Variants of equal data share their prompts; the base (--baseline) and every periodic
evaluation are scored the same way, by the suite of the recipe. Writes curves.json and prints a
table: the curve of --metric, images trained on a second of training (without evaluation), and
seconds of training until the first metric reached --target. A point of a curve has the means of
every reward too, of the images trained on since the point before, as reward/NAME. Needs neither
Prefect nor MLflow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from atelier.config.plan import plan
from atelier.config.resolve import load_stage_config, resolve
from atelier.config.schema import RunConfig
from atelier.data.prompts import read_prompts
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.judging import suite_judge
from atelier.evaluation.results import Evaluation
from atelier.rewards.registry import reachable_judges
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory
from benchmarks.prepared_runs import prepared


def baseline(root: Path, recipe: str, overrides: list[str], device: str) -> dict[str, float]:
    """Scores of the untrained policy on the same prompts and noise."""
    from atelier.evaluation.requests import image_requests
    from atelier.policies.registry import load_policy

    config = resolve(recipe, overrides)
    run = prepared(root / "run-99", config)
    policy = load_policy(config, device)
    prompts = read_prompts(run.data / "heldout.parquet")[: config.evaluation.periodic_prompts]
    requests = image_requests(prompts, config.evaluation)
    made = policy.generate(
        policy.module,
        [one.prompt for one in requests],
        [one.key(config.evaluation.seed) for one in requests],
    )
    judges = reachable_judges(config.judges, {}, _asked(config))
    with suite_judge(config, judges, run.root / "answers") as judge:
        return _means(evaluate(made.images, prompts, config.evaluation, judge))


def _means(evaluation: Evaluation) -> dict[str, float]:
    """Every metric of the suite, with the ends of its interval."""
    found = {}
    for name, one in evaluation.summary["metrics"].items():
        found |= {name: one["mean"], f"{name}/low": one["low"], f"{name}/high": one["high"]}
    return found


def _asked(config: RunConfig) -> list[str]:
    return [] if config.evaluation.judge is None else [config.evaluation.judge]


def score(run: RunDirectory, folder: Path) -> dict[str, float]:
    """One point of a curve, scored in a process of its own: reading takes longer than training."""
    config = load_stage_config(run.config("train"))
    prompts = read_prompts(run.data / "heldout.parquet")[: config.evaluation.periodic_prompts]
    judges = reachable_judges(config.judges, {}, _asked(config))
    with suite_judge(config, judges, folder / "answers") as judge:
        evaluation = score_folder(folder, prompts, config.evaluation, judge)
    return {"step": int(folder.name.removeprefix("step-")), **_means(evaluation)}


def seconds_to(
    metric: str, target: float, curve: list[dict[str, float]], rows: list[dict[str, Any]]
) -> float | None:
    """Seconds of training up to the first point of the curve at or above `target`."""
    reached = [int(point["step"]) for point in curve if point.get(metric, -1.0) >= target]
    if not reached:
        return None
    return round(sum(row["time/step"] for row in rows[: reached[0]]), 1)


def with_rewards(
    curve: list[dict[str, float]], rows: list[dict[str, Any]]
) -> list[dict[str, float]]:
    """Points with the mean of each reward of the steps since the point before; the first, of the
    untrained weights, with those of the first step."""
    found, since = [], 0
    for point in curve:
        step = int(point["step"])
        steps = rows[since:step] or rows[:1]
        names = [one for one in steps[0] if one.startswith("reward/") and one.endswith("/mean")]
        means = {
            name.removesuffix("/mean"): sum(row[name] for row in steps) / len(steps)
            for name in names
            if all(name in row for row in steps)
        }
        found.append({**point, **means})
        since = step
    return found


def split_variant(variant: str, recipe: str) -> tuple[str, list[str]]:
    """A variant's recipe and overrides."""
    parts = variant.split()
    named = [part.removeprefix("recipe=") for part in parts if part.startswith("recipe=")]
    return (named or [recipe])[-1], [part for part in parts if not part.startswith("recipe=")]


def ended(process: subprocess.Popen[bytes], seconds: float | None) -> int:
    """Its exit code; a trainer that runs longer than `seconds` is asked to stop, which is no
    failure: what it evaluated until then counts."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        code = process.wait()
    return 0 if code == -signal.SIGTERM else code


def import_judges() -> None:
    """What takes a scorer longest, before there is something to score."""
    import atelier.judge_models.local  # noqa: F401


def run_variant(
    root: Path,
    recipe: str,
    overrides: list[str],
    number: int,
    options: argparse.Namespace,
    scorers: ProcessPoolExecutor,
) -> dict[str, Any]:
    """Train and score one variant; variants take turns on the GPUs."""
    visible = {"CUDA_VISIBLE_DEVICES": str(number % options.gpus)} if options.gpus else {}
    config = resolve(recipe, overrides)
    run = prepared(root / f"run-{number:02d}", config)
    trainer = ["-m", "atelier.training"]
    if config.launch.processes > 1:
        ranks = ["--nproc-per-node", str(config.launch.processes), "atelier.training"]
        trainer = ["-m", "atelier.processes.torchrun", *ranks]
    started = time.monotonic()
    with (run.root / "trainer.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *trainer, f"--config={run.config('train')}", f"--run={run.root}"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **visible},
        )
        code = ended(process, options.seconds)
    seconds = time.monotonic() - started
    told = [one for _, one in read_json_lines(run.events) if one["event"] == "evaluation_images"]
    folders = [run.train / one["folder"] for one in told]  # those with all their images
    rows = [row for _, row in read_json_lines(run.metrics)]
    curve = with_rewards(list(scorers.map(score, [run] * len(folders), folders)), rows)
    images = config.train.prompts_per_step * config.rollout.group_size
    return {
        "run": run.root.name,
        "recipe": recipe,
        "overrides": overrides,
        "images_per_second": round(images * len(rows) / sum(row["time/step"] for row in rows), 2)
        if rows
        else None,
        "seconds_to_target": seconds_to(options.metric[0], options.target, curve, rows),
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
    parser.add_argument("--metric", nargs="+", default=["similarity", "exact", "gold"])
    parser.add_argument("--target", type=float, default=0.85, help="of the first metric, to time")
    parser.add_argument("--scorers", type=int, default=4, help="processes that score")
    parser.add_argument("--seconds", type=float, help="stop each trainer after so long")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to spread the variants over")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    variants = arguments.variant or [""]
    for variant in variants:
        recipe, overrides = split_variant(variant, arguments.recipe)
        plan(resolve(recipe, [*arguments.common, *overrides]))  # refuses what cannot work
    if arguments.baseline:
        device = "cuda" if arguments.gpus else "cpu"
        before = baseline(arguments.out, arguments.recipe, arguments.common, device)
        (arguments.out / "baseline.json").write_text(json.dumps(before, indent=1))
        sys.stdout.write(f"baseline {_shown(before, arguments.metric)}\n")
    spawn = get_context("spawn")  # a judge may be on a GPU, which no fork survives
    with (
        ProcessPoolExecutor(arguments.scorers, spawn, import_judges) as scorers,
        ThreadPoolExecutor(arguments.parallel) as pool,
    ):
        jobs = {}
        for number, variant in enumerate(variants):
            recipe, overrides = split_variant(variant, arguments.recipe)
            own = (recipe, [*arguments.common, *overrides], number, arguments, scorers)
            job = pool.submit(run_variant, arguments.out, *own)
            jobs[job] = variant
        results = []
        for job in as_completed(jobs):
            result = job.result()
            results.append(result)
            (arguments.out / "curves.json").write_text(json.dumps(results, indent=1))
            points = "  ".join(
                f"{point['step']}:{_shown(point, arguments.metric)}" for point in result["curve"]
            )
            line = (
                f"{jobs[job] or '(recipe)'}  exit {result['exit_code']}  {result['seconds']} s  "
                f"{result['images_per_second']} images/s  target {result['seconds_to_target']} s"
            )
            sys.stdout.write(f"{line}  {points} {result['log_tail']}\n")
            sys.stdout.flush()


def _shown(point: dict[str, float], metrics: list[str]) -> str:
    return "/".join(f"{point[name]:.3f}" for name in metrics if name in point)


if __name__ == "__main__":
    main()
