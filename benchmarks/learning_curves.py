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

Removes what an earlier sweep left in DIR (run-NN, curves.json, baseline.json) once every variant is
planned, and nothing else. Ends with 1 where a variant failed, after all others; SIGTERM and Ctrl-C
end its trainers, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import (
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from atelier.config.paths import make_folder
from atelier.config.plan import plan
from atelier.config.resolve import load_stage_config, resolve
from atelier.config.schema import RunConfig
from atelier.data.prompts import read_prompts
from atelier.errors import AtelierError
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.judging import suite_judge
from atelier.evaluation.results import Evaluation
from atelier.processes.guard import STOPPED
from atelier.processes.supervised import SupervisedProcess
from atelier.rewards.registry import reachable_judges
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory
from benchmarks.options import at_least, exit_code_of
from benchmarks.prepared_runs import prepared
from benchmarks.progress import now

OWN = re.compile(r"run-\d{2,}|curves\.json|baseline\.json")  # what a sweep leaves
LOOK_SECONDS = 0.2
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Variant(NamedTuple):
    """What was asked for, and the recipe and the overrides that it means."""

    text: str
    recipe: str
    overrides: list[str]


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


def planned_variants(options: argparse.Namespace) -> list[Variant]:
    """All variants.

    Raises:
        ConfigError, PlanError: one cannot work; it is named.
    """
    found = []
    for text in options.variant or [""]:
        recipe, overrides = split_variant(text, options.recipe)
        found.append(Variant(text, recipe, [*options.common, *overrides]))
    base = [Variant("", options.recipe, options.common)] if options.baseline else []
    for one in [*base, *found]:
        try:
            plan(resolve(one.recipe, one.overrides))
        except AtelierError as error:
            told = f"--variant {one.text!r}: {error}" if one.text else str(error)
            raise type(error)(told) from error
    return found


def remove_earlier(out: Path) -> None:
    """What an earlier sweep left in a folder; all else in it is somebody's."""
    for one in [one for one in out.iterdir() if OWN.fullmatch(one.name)]:
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        else:
            one.unlink()


def ended(process: SupervisedProcess, seconds: float | None, stopping: Event) -> int:
    """Its exit code; a trainer that runs longer than `seconds` is asked to stop, which is no
    failure: what it evaluated until then counts.

    Raises:
        CancelledError: all is to end.
    """
    began = time.monotonic()
    while (code := process.poll()) is None:
        if seconds is not None and time.monotonic() - began > seconds:
            process.stop()
            code = process.poll()
            return 0 if code in (None, STOPPED) else code
        if stopping.wait(LOOK_SECONDS):
            raise CancelledError
    return code


def import_judges() -> None:
    """What takes a scorer longest, before there is something to score."""
    import atelier.judge_models.local  # noqa: F401


def trainer_command(run: RunDirectory, config: RunConfig) -> list[str]:
    """One process, or as many as the launch has."""
    trainer = ["-m", "atelier.training"]
    if config.launch.processes > 1:
        ranks = ["--nproc-per-node", str(config.launch.processes), "atelier.training"]
        trainer = ["-m", "atelier.processes.torchrun", *ranks]
    return [sys.executable, *trainer, f"--config={run.config('train')}", f"--run={run.root}"]


def run_variant(
    variant: Variant,
    number: int,
    options: argparse.Namespace,
    scorers: ProcessPoolExecutor,
    stopping: Event,
) -> dict[str, Any]:
    """Train and score one variant; variants take turns on the GPUs."""
    visible = {"CUDA_VISIBLE_DEVICES": str(number % options.gpus)} if options.gpus else {}
    config = resolve(variant.recipe, variant.overrides)
    run = prepared(options.out / f"run-{number:02d}", config)
    started, log = time.monotonic(), run.root / "trainer.log"
    now(f"{variant.text or variant.recipe}: {config.train.steps} steps, told in {log}")
    with SupervisedProcess(
        trainer_command(run, config),
        log,
        {**os.environ, "HF_HUB_OFFLINE": "1", **visible},
        Path.cwd(),
    ) as process:
        code = ended(process, options.seconds, stopping)
    seconds = time.monotonic() - started
    told = [one for _, one in read_json_lines(run.events) if one["event"] == "evaluation_images"]
    folders = [run.train / one["folder"] for one in told]  # those with all their images
    rows = [row for _, row in read_json_lines(run.metrics)]
    curve = with_rewards(list(scorers.map(score, [run] * len(folders), folders)), rows)
    images = config.train.prompts_per_step * config.rollout.group_size
    return {
        "run": run.root.name,
        "recipe": variant.recipe,
        "overrides": variant.overrides,
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


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="tiny/flow-grpo-fast")
    parser.add_argument("--set", action="append", default=[], dest="common")
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--parallel", type=at_least(1), default=1)
    parser.add_argument("--baseline", action="store_true", help="score the base first")
    parser.add_argument("--metric", nargs="+", default=["similarity", "exact", "gold"])
    parser.add_argument("--target", type=float, default=0.85, help="of the first metric, to time")
    parser.add_argument("--scorers", type=at_least(1), default=4, help="processes that score")
    parser.add_argument("--seconds", type=at_least(0.0), help="stop each trainer after so long")
    parser.add_argument(
        "--gpus", type=at_least(0), default=0, help="GPUs to spread the variants over"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    options = arguments_of(words)
    return exit_code_of(lambda: sweep(options))


def sweep(options: argparse.Namespace) -> int:
    """Train and score all variants; 1 where one failed, and else 0.

    Raises:
        ConfigError, PlanError: options cannot be used; nothing was touched.
    """
    variants = planned_variants(options)
    make_folder(options.out, "--out")
    remove_earlier(options.out)
    if options.baseline:
        device = "cuda" if options.gpus else "cpu"
        before = baseline(options.out, options.recipe, options.common, device)
        (options.out / "baseline.json").write_text(json.dumps(before, indent=1))
        sys.stdout.write(f"baseline {_shown(before, options.metric)}\n")
    stopping = Event()
    spawn = get_context("spawn")  # a judge may be on a GPU, which no fork survives
    with (
        ProcessPoolExecutor(options.scorers, spawn, import_judges) as scorers,
        ThreadPoolExecutor(options.parallel) as pool,
        ended_by_signals(stopping, pool, scorers),
    ):
        jobs = {}
        for number, variant in enumerate(variants):
            job = pool.submit(run_variant, variant, number, options, scorers, stopping)
            jobs[job] = variant
        return collect(jobs, options)


@contextmanager
def ended_by_signals(
    stopping: Event, pool: ThreadPoolExecutor, scorers: ProcessPoolExecutor
) -> Iterator[None]:
    """SIGTERM and Ctrl-C end trainers and scorers, for which the pools would wait; a second one
    ends this process at once, and its trainers by their guards."""
    before = {one: signal.signal(one, _end) for one in SIGNALS}
    try:
        yield
    except SystemExit:
        stopping.set()
        for one in (pool, scorers):
            one.shutdown(wait=False, cancel_futures=True)
        for scorer in active_children():
            scorer.terminate()
        raise
    finally:
        if not stopping.is_set():
            for signum, handler in before.items():
                signal.signal(signum, handler)


def _end(signum: int, _: FrameType | None) -> NoReturn:
    for one in SIGNALS:
        signal.signal(one, signal.SIG_DFL)
    raise SystemExit(128 + signum)


def collect(jobs: dict[Future[dict[str, Any]], Variant], options: argparse.Namespace) -> int:
    """Write and print results as they come; 1 where a variant failed, and else 0."""
    results, failures = [], 0
    for job in as_completed(jobs):
        try:
            result = job.result()
        except Exception as error:
            traceback.print_exception(error)
            sys.stdout.write(f"{jobs[job].text or '(recipe)'}  failed: {error}\n")
            failures += 1
            continue
        failures += result["exit_code"] != 0
        results.append(result)
        (options.out / "curves.json").write_text(json.dumps(results, indent=1))
        points = "  ".join(
            f"{point['step']}:{_shown(point, options.metric)}" for point in result["curve"]
        )
        line = (
            f"{jobs[job].text or '(recipe)'}  exit {result['exit_code']}  {result['seconds']} s  "
            f"{result['images_per_second']} images/s  target {result['seconds_to_target']} s"
        )
        sys.stdout.write(f"{line}  {points} {result['log_tail']}\n")
        sys.stdout.flush()
    return 1 if failures else 0


def _shown(point: dict[str, float], metrics: list[str]) -> str:
    return "/".join(f"{point[name]:.3f}" for name in metrics if name in point)


if __name__ == "__main__":
    sys.exit(main())
