"""How training steps scale over ranks: by DDP, ZeRO-2 and ZeRO-3, beside one rank.

    python -m benchmarks.scaling --out DIR --case sd35m                     # all GPUs there are
    python -m benchmarks.scaling --out DIR --case sd35m --ranks 8 --work weak --engines ddp zero2
    python -m benchmarks.scaling --out DIR --case sd35m --size small --device cpu --ranks 1 2 4 8

Trains models of published shapes with random weights, on the recipes

    sd35m     sd35m/flow-grpo-fast
    deepgen   deepgen/mr-grpo, 10 denoising steps
    janus     janus-pro-7b/pair-grpo

with images scored by the size of their file, and other settings of scaling_cases.py. With --work
weak a rank has --prompts prompts a step, however many there are; with strong a step has
--all-prompts, 8 times that unless given. What one rank makes of the latter is what losses and
gradients of others are compared with. One rank trains by DDP whatever --engines says, unless it is
all that --ranks asks for.

Each run is started as the train stage starts it, by the same command and guard, but a rank is
watched_rank.py, which is the trainer and profiles the step after the timed ones; then it is
stopped, before it would write a checkpoint. With --finish it is trained to its end and saved, which
conversion.py goes on with. Runs are written to DIR/results.jsonl as they end; those that are there
are skipped, so that a sweep may be done in parts. --page writes them as a page of markdown.

Needs neither Prefect nor MLflow. Ends with 1 where a run failed, after all others, and with 2,
before anything is built, where options cannot be used.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from atelier import telemetry
from atelier.config.paths import make_folder, repository_root
from atelier.config.plan import Plan, plan
from atelier.config.schema import RunConfig
from atelier.errors import AtelierError, ConfigError
from atelier.processes.supervised import SupervisedProcess
from atelier.stages.log_tail import LogTail
from atelier.stages.train import trainer_command, trainer_environment
from atelier.tracking.events import JsonLines, read_json_lines
from atelier.tracking.run_directory import RunDirectory, read_json_object
from benchmarks.options import at_least, exit_code_of
from benchmarks.prepared_runs import prepared
from benchmarks.progress import now
from benchmarks.scaling_cases import CASES, ENGINES, Sweep
from benchmarks.scaling_figures import (
    ALIKE,
    Facts,
    efficiency,
    equivalence,
    figures,
    key,
    measured,
)
from benchmarks.scaling_page import write_page
from benchmarks.watched_rank import FOUND, STEP

PAGES = Path(__file__).parent / "pages"
GIBIBYTE = 2**30
LOOK_SECONDS = 0.2
LARGEST = 8  # ranks whose fixed work is --all-prompts unless that is given
USUAL_RANKS = (1, 2, 4, 8)

Result = TypeVar("Result")


class RunFailed(Exception):
    """A trainer ended before it was measured; the text says how."""


def elsewhere(function: Callable[..., Result], *arguments: Any) -> Result:
    """What it gives, from a process of its own: it leaves nothing on a GPU."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def machine() -> Facts:
    """Name, number and GiB of GPUs, the CPU's cores, versions of what computes."""
    import diffusers
    import torch
    import transformers

    gpus = torch.cuda.device_count()
    first = torch.cuda.get_device_properties(0) if gpus else None
    return {
        "gpus": gpus,
        "name": first.name if first else None,
        "gib": first.total_memory / GIBIBYTE if first else None,
        "cores": len(os.sched_getaffinity(0)),
        "versions": {one.__name__: one.__version__ for one in (torch, diffusers, transformers)},
    }


def model_folder(options: argparse.Namespace) -> Path:
    """Where the model is, or is to be built."""
    folder: Path = options.out / f"model-{options.case}-{options.size}"
    return folder.resolve()


def build_model(case: str, size: str, folder: Path) -> None:
    """Unless it is there."""
    if not folder.is_dir():
        now(f"writes the model to {folder}")
        aside = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(aside, ignore_errors=True)
        elsewhere(CASES[case].build, size, aside)
        aside.rename(folder)


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Engine, ranks and prompts of every run, each once, one rank's first."""
    seen, of_one = set(), options.engines if options.ranks == [1] else ["ddp"]
    for work in options.work:
        for ranks in sorted(options.ranks):
            prompts = options.prompts * ranks if work == "weak" else options.all_prompts
            for engine in options.engines if ranks > 1 else of_one:
                one = (engine, ranks, prompts)
                if one not in seen:
                    seen.add(one)
                    yield one


def trained(run: RunDirectory, config: RunConfig, steps: int) -> None:
    """Start a run's trainer as the train stage does, and stop it once so many steps are done and
    the last of them is profiled; or let it end by itself.

    Raises:
        RunFailed: it ended otherwise.
    """
    log = run.train / "trainer.log"
    now(f"{run.root.name}: {steps} steps, told in {log}")
    command = [sys.executable, "-m", *trainer_command(run, config, ())]
    command[command.index("atelier.training")] = "benchmarks.watched_rank"
    tail = LogTail(log)
    with SupervisedProcess(
        command,
        log,
        {**trainer_environment(config), STEP: str(steps)},
        repository_root(),
        record=run.processes / "trainer.json",
    ) as process:
        while (code := process.poll()) is None and not is_measured(run, config, steps):
            time.sleep(LOOK_SECONDS)
    if code:
        raise RunFailed(f"exit code {code}: {tail.last_error().text}")


def is_measured(run: RunDirectory, config: RunConfig, steps: int) -> bool:
    """Whether nothing is to come that is wanted."""
    ends_by_itself = config.train.steps <= steps
    return not ends_by_itself and len(rows(run)) >= steps and (run.train / FOUND).exists()


def rows(run: RunDirectory) -> list[dict[str, Any]]:
    return [row for _, row in read_json_lines(run.metrics)] if run.metrics.exists() else []


def result(run: RunDirectory, config: RunConfig, planned: Plan, about: Facts, steps: int) -> Facts:
    """Train a run, and what came of it."""
    limit, memory = about["gib"], planned.memory
    assert memory is not None  # of a model that is on this machine
    gib = max(memory.at(phase) for phase in memory.phases if phase != "prompts") / GIBIBYTE
    if limit is not None and gib > limit:
        raise RunFailed(f"the plan says {gib:.0f} GiB, and a GPU has {limit:.0f}")
    shutil.rmtree(run.root, ignore_errors=True)
    prepared(run.root, config)
    trained(run, config, steps + 2)
    found = read_json_object(run.train / FOUND)
    return {
        **figures(rows(run), steps, planned.samples_per_step),
        "images": planned.samples_per_step,
        "communication": found,
        "predicted_gib": gib,
    }


def command_of(options: argparse.Namespace) -> str:
    """That measures this again, with every option but its folders."""
    words = ["python", "-m", "benchmarks.scaling", "--out", "DIR"]
    for name in ("case", "size", "device", "prompts", "all_prompts", "steps"):
        words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    words += [word for one in options.overrides for word in ("--set", one)]
    return shlex.join(words)


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of models, runs, results")
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--size", help="of the model; the published one unless given, or small")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--ranks", type=at_least(1), nargs="+", help="default: 1 2 4 8, as GPUs are there"
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["ddp"])
    parser.add_argument("--work", nargs="+", choices=("weak", "strong"), default=["weak", "strong"])
    parser.add_argument("--prompts", type=at_least(1), help="of a rank and step, of weak")
    parser.add_argument("--all-prompts", type=at_least(1), help="of a step, of strong")
    parser.add_argument("--steps", type=at_least(1), default=2, help="that are timed")
    parser.add_argument("--finish", action="store_true", help="train to the end, and save")
    parser.add_argument("--page", type=Path, nargs="?", const=PAGES, metavar="FOLDER")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(words)
    case = CASES[options.case]
    options.size = options.size or case.sizes[0]
    if options.size not in case.sizes:
        parser.error(f"--size: {options.case} has {', '.join(case.sizes)}")
    if options.device == "cpu" and options.size != "small":
        parser.error("--device cpu: takes --size small")
    options.prompts = options.prompts or case.prompts
    options.all_prompts = options.all_prompts or LARGEST * options.prompts
    return options


def require_ranks(options: argparse.Namespace, known: Facts) -> None:
    """Choose the ranks, where none were asked for.

    Raises:
        ConfigError: there are not so many GPUs.
    """
    if options.device == "cpu":
        options.ranks = options.ranks or list(USUAL_RANKS)
        return
    options.ranks = options.ranks or [one for one in USUAL_RANKS if one <= known["gpus"]]
    if not options.ranks or max(options.ranks) > known["gpus"]:
        raise ConfigError(
            f"--ranks: {known['gpus']} GPUs are there; ask for as many ranks at most, or try "
            "--size small --device cpu"
        )


def about_of(options: argparse.Namespace, known: Facts) -> Facts:
    """What all results of a command have in common."""
    case, on_gpu = CASES[options.case], options.device == "cuda"
    settings = [*case.settings, *(case.small if options.size == "small" else ())]
    return {
        "case": options.case,
        "recipe": case.recipe,
        "size": options.size,
        "device": known["name"] if on_gpu else "CPU",
        "gib": known["gib"] if on_gpu else None,
        "cores": known["cores"],
        "versions": known["versions"],
        "overrides": " ".join(options.overrides),
        "settings": " ".join(f"`{one}`" for one in (*settings, *options.overrides)),
        "date": time.strftime("%Y-%m-%d"),
        "command": command_of(options),
        "steps": options.steps,
    }


def config_of(sweep: Sweep, engine: str, ranks: int, prompts: int, last: int | None) -> RunConfig:
    """Of a run that ends with step `last`, or with none."""
    config = sweep.config(engine, ranks, prompts)
    if last is None:
        return config
    train = config.train.model_copy(update={"steps": last, "checkpoint_every": last})
    return config.model_copy(update={"train": train})


def require_settings(options: argparse.Namespace, sweep: Sweep) -> None:
    """Before a model is built. What only some of the runs cannot have is told of these.

    Raises:
        ConfigError: no run can have these settings.
    """
    refused = None
    for one in wanted(options):
        try:
            sweep.config(*one)
        except ConfigError as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise refused


@contextmanager
def opened(file: Path) -> Iterator[tuple[list[Facts], JsonLines]]:
    """Results that are there, and the file for more, which begin on a line of their own: what a
    killed process left of its last one is cut off."""
    found = list(read_json_lines(file))
    with closing(JsonLines(file)) as lines:
        lines.cut_back(found[-1][0] if found else 0)
        yield [one for _, one in found], lines


def main(words: Sequence[str] | None = None) -> int:
    telemetry.off_by_default()
    options = arguments_of(words)
    return exit_code_of(lambda: measure(options))


def measure(options: argparse.Namespace) -> int:
    """Make the runs that are wanted; 1 where one failed, and else 0.

    Raises:
        ConfigError: options cannot be used.
    """
    make_folder(options.out, "--out")
    if options.page is not None:
        make_folder(options.page, "--page")
    known = elsewhere(machine)
    require_ranks(options, known)
    sweep = Sweep(options.case, options.size, model_folder(options), options.overrides)
    require_settings(options, sweep)
    with opened(options.out / "results.jsonl") as (results, lines):
        build_model(options.case, options.size, sweep.model)
        return all_runs(options, about_of(options, known), sweep, results, lines)


def all_runs(
    options: argparse.Namespace, about: Facts, sweep: Sweep, results: list[Facts], lines: JsonLines
) -> int:
    """Those that are not among the results yet; 1 where one failed, and else 0."""
    failures = 0
    for engine, ranks, prompts in wanted(options):
        one = {**about, "engine": engine, "ranks": ranks, "prompts": prompts}
        if key(one) in map(key, measured(results)) and not options.finish:
            continue
        name = f"{options.case}-{options.size}-{engine}-{ranks}-{prompts}"
        run = RunDirectory((options.out / "scaling-runs" / name).resolve())
        last = options.steps + 2 if options.finish else None
        try:
            config = config_of(sweep, engine, ranks, prompts, last)
            one |= result(run, config, plan(config), about, options.steps)
        except (RunFailed, AtelierError) as error:
            one["failed"] = " ".join(str(error).split())
            failures += 1
        results.append(one)
        lines.append(one)
        print(json.dumps(line(one, measured(results), options)), flush=True)
    alike = [one for one in results if all(one[name] == about[name] for name in ALIKE)]
    if options.page is not None and alike:
        print(write_page(options.page, alike, options.prompts, options.all_prompts))
    return 1 if failures else 0


def line(one: Facts, done: Sequence[Facts], options: argparse.Namespace) -> Facts:
    """A result in short."""
    shown = {name: one[name] for name in ("engine", "ranks", "prompts")}
    if "failed" in one:
        return {**shown, "failed": one["failed"]}
    is_weak = one["prompts"] == options.prompts * one["ranks"]
    alone = options.prompts if is_weak else options.all_prompts
    names = ("images_per_second", "seconds", "communication", "peak_gib", "predicted_gib")
    more = {"efficiency": efficiency(one, done, alone), "from_one": equivalence(one, done)}
    return {**shown, **{name: one[name] for name in names}, **more}


if __name__ == "__main__":
    sys.exit(main())
