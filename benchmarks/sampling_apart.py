"""Does it pay to let some ranks only sample and the others only train? Images a second.

    python -m benchmarks.sampling_apart --out DIR --ranks 2 --sampling 1
    python -m benchmarks.sampling_apart --out DIR --ranks 4 --sampling 1 2 --recipe RECIPE

On the same ranks: all sample and train, one step off, against so many that only sample
(launch.rollout_processes). The ways take turns, each a whole run, so that what else the machine
does touches all of them. Prints a line of JSON a way: images a second and the seconds of each phase
(medians over steps and rounds, without the first and the last step, which nothing overlaps), what
they are to the hybrid form in the same round, and the equivalence: how far rewards of steps and
final weights are from its, the latter as a share of how far they have moved in the last step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atelier.config.resolve import load_stage_config, resolve
from atelier.report.run_data import metric_records
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import all_checkpoints, load_checkpoint
from benchmarks.children import finish
from benchmarks.prepared_runs import prepared
from benchmarks.progress import now

PHASES = ("rollout", "score", "update", "wait_for_rollout", "wait_for_update", "hand_over", "push")


def trained(root: Path, sampling: int, options: argparse.Namespace) -> RunDirectory:
    """A run of which so many ranks only sample, or where there are none, all do both.

    Raises:
        SystemExit: the trainer failed.
    """
    own = [
        f"launch.processes={options.ranks}",
        f"launch.rollout_processes={sampling}",
        f"train.steps={options.steps}",
        f"train.checkpoint_every={options.steps - 1}",
        "train.one_step_off=true",
        "train.in_flight=store",
        "train.evaluate_every=0",
    ]
    run = prepared(root, resolve(options.recipe, [*own, *options.overrides]))
    command = [sys.executable, "-m", "atelier.processes.torchrun"]
    command += ["--nproc-per-node", str(options.ranks), "atelier.training"]
    command += ["--config", str(run.config("train")), "--run", str(run.root)]
    finish(command)
    return run


def seconds(run: RunDirectory) -> dict[str, float]:
    """Median seconds of a step and of its phases."""
    steps = metric_records(run)[1:-1]
    names = ("step", *(name for name in PHASES if f"time/{name}" in steps[0]))
    return {name: statistics.median(row[f"time/{name}"] for row in steps) for name in names}


def images_a_second(run: RunDirectory) -> float:
    config = load_stage_config(run.config("train"))
    return config.train.prompts_per_step * config.rollout.group_size / seconds(run)["step"]


def difference(run: RunDirectory, other: RunDirectory) -> dict[str, float]:
    """Of two ways to train one run: the largest of rewards, and of weights as a share of what the
    last step moved."""
    pairs = zip(metric_records(run), metric_records(other), strict=True)
    before, last = (load_checkpoint(one).weights for one in all_checkpoints(other.checkpoints)[-2:])
    ours = load_checkpoint(all_checkpoints(run.checkpoints)[-1]).weights
    moved = max(float((last[name] - before[name]).abs().max()) for name in last)
    apart = max(float((last[name] - ours[name]).abs().max()) for name in last)
    return {
        "rewards": max(abs(a["reward/mean"] - b["reward/mean"]) for a, b in pairs),
        "weights": round(apart / moved, 5),
    }


def line(rounds: Sequence[RunDirectory], hybrid: Sequence[RunDirectory]) -> dict[str, Any]:
    """What a way came to."""
    speeds, theirs = [images_a_second(one) for one in rounds], map(images_a_second, hybrid)
    times = [seconds(one) for one in rounds]
    return {
        "images_a_second": round(statistics.median(speeds), 2),
        "to_hybrid": [round(a / b, 3) for a, b in zip(speeds, theirs, strict=True)],
        **{name: round(statistics.median(t[name] for t in times), 3) for name in times[0]},
        "from_hybrid": difference(rounds[0], hybrid[0]),
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="tiny/flow-grpo-fast")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sampling", type=int, nargs="+", default=[1], help="of the ranks")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(words)
    ways: dict[int, list[RunDirectory]] = {sampling: [] for sampling in (0, *options.sampling)}
    for number in range(options.rounds):
        for sampling, runs in ways.items():
            folder = options.out / f"{sampling}-round-{number}"
            now(f"round {number + 1} of {options.rounds}, {sampling} ranks sample: {folder}")
            runs.append(trained(folder, sampling, options))
    for sampling, runs in ways.items():
        way = f"{sampling} + {options.ranks - sampling}" if sampling else f"hybrid {options.ranks}"
        print(json.dumps({"way": way, **line(runs, ways[0])}), flush=True)


if __name__ == "__main__":
    main()
