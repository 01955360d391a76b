"""Does training wait for MLflow? Seconds a step with its server up, and with none answering.

    python benchmarks/mlflow_outage.py --repetitions 6

Trains the demo's model, a smaller step than the demo's, one run after another, up and down in turn
and in changing order, each in a run directory of its own. The first step of a run is left out: it
warms caches. Says the median of all steps for both, and the mean difference of the pairs with its
95 % interval.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atelier.config.resolve import resolve, write_stage_configs
from atelier.data.prepare import prepare
from atelier.evaluation.statistics import mean_interval
from atelier.tracking.run_directory import RunDirectory

RECIPE = "tiny/flow-grpo-fast"
SMALL = (
    "train.prompts_per_step=4",
    "rollout.group_size=8",
    "train.evaluate_every=0",
    "launch.processes=1",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=6, help="runs with each")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"up": [], "down": []}
    steps: dict[str, list[float]] = {"up": [], "down": []}
    folder = Path(tempfile.mkdtemp(prefix="mlflow-outage-"))
    with mlflow_server(folder) as address:
        addresses = {"up": address, "down": f"http://127.0.0.1:{free_port()}"}
        for repetition in range(options.repetitions):
            for state in ("up", "down") if repetition % 2 else ("down", "up"):
                run = folder / f"{state}-{repetition}"
                found = train(run, addresses[state], options.steps)
                steps[state] += found
                seconds[state].append(statistics.median(found))
                print(f"{state:<4}  median {seconds[state][-1]:.3f} s a step", flush=True)
    shutil.rmtree(folder)
    change = [down / up - 1 for up, down in zip(seconds["up"], seconds["down"], strict=True)]
    one = mean_interval(change)
    medians = {state: statistics.median(found) for state, found in steps.items()}
    print(f"median step: up {medians['up']:.3f} s, down {medians['down']:.3f} s")
    print(f"down against up: {one.mean:+.1%} (95 % interval {one.low:+.1%} to {one.high:+.1%})")


def train(folder: Path, uri: str, steps: int) -> list[float]:
    """Seconds of every step but the first."""
    run = RunDirectory(folder)
    overrides = [*SMALL, f"train.steps={steps}", f"tracking.mlflow_uri={uri}"]
    config = resolve(RECIPE, overrides)
    write_stage_configs(config, run)
    prepare(config.data, run.data)
    command = [sys.executable, "-m", "atelier", "stage", "train", "--run", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [row["time/step"] for row in rows[1:]]


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """A real server with a store in `folder`; yields its address."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    artifacts = ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    null = subprocess.DEVNULL
    server = subprocess.Popen(
        [*command, *store, *artifacts], env=quiet, cwd=folder, stdout=null, stderr=null
    )
    try:
        wait_for(f"{address}/health")
        yield address
    finally:
        server.terminate()
        server.wait()


def wait_for(url: str, patience_seconds: float = 120.0) -> None:
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("the MLflow server did not come up")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
