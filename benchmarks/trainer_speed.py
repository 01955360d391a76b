"""How fast whole training steps are: the product's own trainer, with either transformer.

    python -m benchmarks.trainer_speed --out DIR                       # on a GPU
    python -m benchmarks.trainer_speed --out DIR --idle --page         # and what the GPU waits for
    python -m benchmarks.trainer_speed --out DIR --size small --device cpu

Builds a pipeline of SD3.5-Medium's shape with random weights in DIR, unless it is there, and trains
each case in this one process by several ways, --ways: policy.transformer stock and fast, and fast
with policy.lora.folded: one step that does not count, in which blocks are compiled, and --steps
that do. Settings are those of the recipe
sd35m/flow-grpo-fast-1gpu at 512x512 with 2 prompts x 24 images a step, 24 rows a micro-batch, base
and arithmetic in float16 (on a CPU float32), and the case's:

    no_cfg   all ten steps trained, no guidance, no KL
    cfg      the same with guidance 4.5
    cfg_kl   and with a KL to the reference
    window   three steps trained, no guidance, no KL

OCR scores where rapidocr is installed; the size as JPEG always. Random weights draw noise, in which
detection finds words everywhere: --pictures words draws some over it. Needs neither Prefect nor
MLflow. Prints a line of JSON a run and a table, whose columns --page explains. Its runs of before,
in DIR/speed-runs, are removed once all cases are planned.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path

import diffusers
import torch
import transformers

from atelier import telemetry
from atelier.config.memory.estimate import Memory
from atelier.config.paths import make_folder
from atelier.config.plan import plan
from atelier.config.schema import RunConfig
from atelier.tracking.events import read_json_lines
from atelier.training.measures import Stopwatch
from atelier.training.trainer import Around
from atelier.training.worker import train
from benchmarks.arithmetic import Arithmetic, square_product_rate
from benchmarks.device_time import DeviceTime
from benchmarks.idle import StepProfiler
from benchmarks.options import at_least, exit_code_of
from benchmarks.prepared_runs import prepared
from benchmarks.progress import now
from benchmarks.sd3_shape import build_pipeline
from benchmarks.speed_cases import (
    CASES,
    PROMPTS,
    SIZES,
    WAYS,
    Setting,
    Way,
    load_of,
)
from benchmarks.speed_figures import Facts, figures, gains
from benchmarks.speed_page import idle_table, table, write_page
from benchmarks.timing import GIBIBYTE
from benchmarks.words import words_are_drawn

PAGES = Path(__file__).parent / "pages"
PEAK_REPEATS = 3
RUNS = "speed-runs"  # and not "runs": --out may be where those of the product are


def model_folder(options: argparse.Namespace) -> Path:
    """Where the pipeline is, or is to be built."""
    folder: Path = options.out / f"model-{options.size}-{options.text}"
    return folder.resolve()


def build_model(options: argparse.Namespace) -> None:
    """Unless it is there."""
    folder = model_folder(options)
    if not (folder / "model_index.json").is_file():
        now(f"writes the model to {folder}")
        build_pipeline(SIZES[options.size].shape, options.text == "real", folder)


def configs(setting: Setting, options: argparse.Namespace) -> list[RunConfig]:
    """Of every case by every way.

    Raises:
        ConfigError: one cannot be had.
    """
    return [setting.config(case, way) for case in options.cases for way in options.ways]


def measured(
    case: str,
    way: Way,
    setting: Setting,
    work: Arithmetic,
    peak: float,
    options: argparse.Namespace,
) -> Facts:
    """Train a case; figures of its timed steps."""
    config = setting.config(case, way)
    planned = plan(config)
    run = prepared(options.out / RUNS / f"{case}-{way}", config)
    clock = DeviceTime(torch.device(options.device))
    profiler = StepProfiler(setting.steps) if options.idle else None
    run.train.mkdir(parents=True)
    told = run.train / "trainer.log"
    now(f"{case}, {way}: {config.train.steps} steps, told in {told}")
    pictures = words_are_drawn() if options.pictures == "words" else nullcontext()
    with told.open("w") as log, redirect_stdout(log), pictures:
        train(run.config("train"), run, inside(clock, profiler) if profiler else clock)
    free()
    rows = [row for _, row in read_json_lines(run.metrics)]
    events = [event for _, event in read_json_lines(run.events)]
    timed = slice(1, 1 + options.steps)
    steps = rows[timed], clock.steps[timed], events
    found = figures(*steps, load_of(config, planned), work, peak)
    assert planned.memory is not None  # of a model that is on this machine
    waiting = {"waiting": profiler.found} if profiler else {}
    return {"case": case, "way": way, **found, "predicted_gib": step_gib(planned.memory), **waiting}


def inside(*arounds: Around) -> Around:
    """Each step inside of the first, that inside of the next."""

    @contextmanager
    def around(watch: Stopwatch) -> Iterator[None]:
        with ExitStack() as stack:
            for one in reversed(arounds):
                stack.enter_context(one(watch))
            yield

    return around


def step_gib(memory: Memory) -> float:
    """What a plan says of a step's phases; prompts are encoded before the first."""
    return max(memory.at(phase) for phase in memory.phases if phase != "prompts") / GIBIBYTE


def free() -> None:
    """Nothing of a run is left for the next: neither its weights nor what was compiled of them."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def results(
    setting: Setting, work: Arithmetic, peak: float, options: argparse.Namespace
) -> Iterator[Facts]:
    """Of every case by every way."""
    for case in options.cases:
        stock: Facts | None = None
        for way in [one for one in WAYS if one in options.ways]:
            found = measured(case, way, setting, work, peak, options)
            if way == "stock":
                stock = found
            elif stock is not None:
                found["gains"] = gains(stock, found)
            yield found


def about(setting: Setting, peak: float, options: argparse.Namespace) -> Facts:
    """What was measured, where and by what."""
    on_gpu = options.device == "cuda"
    packages = (torch, diffusers, transformers)
    scored = setting.config(options.cases[0], "stock").rewards
    return {
        "model": f"SD3.5 {options.size} shape",
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "date": time.strftime("%Y-%m-%d"),
        "command": command(options),
        "cases": options.cases,
        "versions": {one.__name__: one.__version__ for one in packages},
        "text": "real-size" if options.text == "real" else "tiny",
        "pictures": options.pictures,
        "rewards": ", ".join(scored.sections()),
        "images": PROMPTS * setting.size.group,
        "steps": options.steps,
        "side": setting.size.product,
        "peak": peak / 1e12,
    }


def command(options: argparse.Namespace) -> str:
    """That measures this again, with every option but its folders."""
    words = ["python", "-m", "benchmarks.trainer_speed", "--out", "DIR"]
    for name in ("size", "text", "pictures", "device", "rank", "steps"):
        words += [f"--{name}", str(getattr(options, name))]
    words += ["--cases", *options.cases, "--ways", *options.ways]
    words += ["--idle"] if options.idle else []
    words += [word for one in options.overrides for word in ("--set", one)]
    return shlex.join(words)


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the model and the runs")
    parser.add_argument("--size", default="medium", choices=SIZES)
    parser.add_argument(
        "--text", default="tiny", choices=("tiny", "real"), help="encoders; real: 11 GB of disk"
    )
    parser.add_argument("--pictures", default="noise", choices=("noise", "words"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--rank", type=at_least(1), default=32, help="of the adapter; alpha is twice that"
    )
    parser.add_argument("--steps", type=at_least(1), default=3, help="that are timed")
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=CASES)
    parser.add_argument("--ways", nargs="+", default=["stock", "fast"], choices=WAYS)
    parser.add_argument("--idle", action="store_true", help="profile one more step")
    parser.add_argument(
        "--page", type=Path, nargs="?", const=PAGES, metavar="FOLDER", help="write a page there"
    )
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", help="of all cases: key=value"
    )
    options = parser.parse_args(words)
    options.cases = list(dict.fromkeys(options.cases))  # each once
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU; use --size small --device cpu")
    if options.idle and options.device == "cpu":
        parser.error("--idle: it is the GPU's waiting that is measured; leave it out")
    return options


def main(words: Sequence[str] | None = None) -> int:
    telemetry.off_by_default()
    options = arguments_of(words)
    return exit_code_of(lambda: measure(options))


def measure(options: argparse.Namespace) -> int:
    """All cases by all ways, a table and a page.

    Raises:
        ConfigError, PlanError: options cannot be used; earlier runs are still there.
    """
    make_folder(options.out, "--out")
    if options.page is not None:
        make_folder(options.page, "--page")
    size = SIZES[options.size]
    steps = 1 + options.steps + options.idle
    given = options.device, options.rank, steps, options.overrides
    setting = Setting(size, model_folder(options), *given)
    wanted = configs(setting, options)
    build_model(options)
    for config in wanted:
        plan(config)
    shutil.rmtree(options.out / RUNS, ignore_errors=True)
    dtype = getattr(torch, setting.config(options.cases[0], "stock").policy.dtype)
    peak = square_product_rate(size.product, dtype, torch.device(options.device), PEAK_REPEATS)
    known, found = about(setting, peak, options), []
    print(json.dumps(known), flush=True)
    for one in results(setting, size.arithmetic, peak, options):
        found.append(one)
        print(json.dumps(one), flush=True)
    print("\n" + table(found))
    if options.idle:
        print("\n" + idle_table(found))
    if options.page is not None:
        print(f"\n{write_page(options.page, known, found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
