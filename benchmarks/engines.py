"""What launch.engine costs, and that it changes nothing: steps by DDP, ZeRO-2 and ZeRO-3.

    python -m benchmarks.engines --out DIR --policy FOLDER --ranks 1 2 4
    python -m benchmarks.engines --out DIR --policy FOLDER --ranks 2 --set policy.resolution=null

Each way is a run of its own by `atelier stage`, which starts torchrun as the flow does. With more
ranks a step has as many more prompts, so each rank has the same work (weak scaling). Prints a line
of JSON each: seconds of a step and samples a second (medians, without the first step), peak memory
of a rank, and at equal ranks how far losses and gradient norm of each step are from DDP's. At last
the run with --export is exported, converted to a file for fine-tuning and read back.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atelier.config.resolve import load_stage_config
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory

RECIPE = "benchmarks/deepgen-shape.yaml"
ENGINES = {
    "ddp": ["launch.engine=ddp"],
    "zero2": ["launch.engine=deepspeed", "launch.zero_stage=2"],
    "zero3": ["launch.engine=deepspeed", "launch.zero_stage=3"],
    "zero3_sd3": [
        "launch.engine=deepspeed",
        "launch.zero_stage=3",
        "launch.zero_tuning=sd3",
    ],
}
COMPARED = ("reward/mean", "kl", "loss/sft", "grad_norm")  # loss/policy is 0 but for rounding


def atelier(*words: str) -> None:
    """A command of ours, whose output is shown where it fails.

    Raises:
        SystemExit: it did.
    """
    command = [sys.executable, "-m", "atelier", *words]
    done = subprocess.run(
        command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def stages(run: RunDirectory, *names: str) -> None:
    for name in names:
        atelier("stage", name, "--run", str(run.root))


def trained(root: Path, engine: str, ranks: int, options: argparse.Namespace) -> RunDirectory:
    """A run, to the end of its training."""
    run = RunDirectory(root / f"{engine}-{ranks}")
    own = [
        f"policy.path={options.policy.resolve()}",
        f"launch.processes={ranks}",
        f"train.prompts_per_step={options.prompts * ranks}",
        *ENGINES[engine],
        *options.overrides,
    ]
    settings = [word for one in own for word in ("--set", one)]
    atelier("stage", "resolve", "--recipe", options.recipe, "--run", str(run.root), *settings)
    stages(run, "prepare", "train")
    return run


def rows(run: RunDirectory) -> list[dict[str, Any]]:
    return [row for _, row in read_json_lines(run.metrics)]


def facts(run: RunDirectory) -> dict[str, Any]:
    """Speeds and memory; the first step compiles, tunes and allocates."""
    config, steps = load_stage_config(run.config("train")), rows(run)
    images = config.train.prompts_per_step * config.rollout.group_size
    timed = steps[1:] or steps
    phases = sorted(name for name in timed[0] if name.startswith("time/") and name.count("/") == 1)
    seconds = {name: statistics.median(row[name] for row in timed) for name in phases}
    peaks = [row["memory/peak_gib"] for row in steps if "memory/peak_gib" in row]
    return {
        **{name.removeprefix("time/"): round(value, 3) for name, value in seconds.items()},
        "samples_per_second": round(images / seconds["time/step"], 3),
        "peak_gib": max(peaks, default=None),
    }


def difference(run: RunDirectory, other: RunDirectory) -> dict[str, Any]:
    """The largest of all steps, relative to the other's largest value."""
    found: dict[str, Any] = {}
    for name in COMPARED:
        pairs = [(a[name], b[name]) for a, b in zip(rows(run), rows(other), strict=True)]
        size = max(abs(b) for _, b in pairs)
        found[name] = max(abs(a - b) for a, b in pairs) / size
    return found


def converted(run: RunDirectory) -> dict[str, Any]:
    """Evaluated and exported, as one file, and read back; seconds of both."""
    began = time.monotonic()
    stages(run, "baseline", "evaluate", "export")
    exported = time.monotonic()
    file = run.root / "sft.pth"
    atelier("export", "sft", str(run.root), str(file))
    done = time.monotonic()
    size = file.stat().st_size / 2**30
    return {
        "evaluate_and_export": round(exported - began, 1),
        "sft": round(done - exported, 1),
        "gib": round(size, 2),
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompts", type=int, default=2, help="of a rank and step, 8 images each")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["ddp", "zero2", "zero3"])
    parser.add_argument("--export", metavar="ENGINE", help="convert this one's, of most ranks")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(words)
    runs: dict[tuple[str, int], RunDirectory] = {}
    for ranks in options.ranks:
        for engine in options.engines if ranks > 1 else ["ddp"]:
            run = runs[engine, ranks] = trained(options.out, engine, ranks, options)
            line = {"engine": engine, "ranks": ranks, **facts(run)}
            if engine != "ddp" and ("ddp", ranks) in runs:
                line["from_ddp"] = difference(run, runs["ddp", ranks])
            print(json.dumps(line), flush=True)
    if options.export:
        found = converted(runs[options.export, max(options.ranks)])
        print(json.dumps({"converted": options.export, **found}), flush=True)


if __name__ == "__main__":
    main()
