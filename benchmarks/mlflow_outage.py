"""Does training wait for MLflow? Seconds a step while its server answers, and while it does not.

    python benchmarks/mlflow_outage.py --blocks 11 --seconds 45

One run of the demo's model with a small step, mirrored to a real server through a switch that
refuses connections every other block of time. Comparing neighbouring blocks of one run leaves out
what else the machine is doing. Says the mean change of a step from up to down, with its 95 %
interval over pairs of blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from atelier.config.resolve import resolve, write_stage_configs
from atelier.data.prepare import prepare
from atelier.evaluation.statistics import mean_interval
from atelier.processes.supervised import SupervisedProcess
from atelier.report.run_data import metric_records
from atelier.tracking.run_directory import RunDirectory

RECIPE = "tiny/flow-grpo-fast"
SETTINGS = (
    "train.prompts_per_step=4",
    "rollout.group_size=8",
    "train.steps=100000",
    "train.evaluate_every=0",
    "launch.processes=1",
)


class Switch:
    """Forwards a port to another while it is `up`; else it refuses connections."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self._listener: socket.socket | None = None

    def turn(self, up: bool) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
            self._listener = None
        if up:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed: the switch was turned
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=11, help="of time, every other one down")
    parser.add_argument("--seconds", type=float, default=45.0, help="length of a block")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mlflow-outage-"))
    port = free_port()
    switch = Switch(port)
    run = prepared(folder / "run", f"http://127.0.0.1:{switch.port}")
    train = [sys.executable, "-m", "atelier", "stage", "train", "--run", str(run.root)]
    variables = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = server_command(port, folder)
    with SupervisedProcess(server, folder / "server.log", variables, folder):
        wait_for(f"http://127.0.0.1:{port}/health")
        switch.turn(True)
        with SupervisedProcess(train, folder / "stage.log", variables, Path.cwd()):
            numbers = range(options.blocks)
            blocks = [block(run, switch, number, options.seconds) for number in numbers]
    shutil.rmtree(folder)
    report(blocks)


def block(run: RunDirectory, switch: Switch, number: int, seconds: float) -> float:
    """Median seconds of the steps that lie wholly in the next block; even blocks are up."""
    while len(metric_records(run)) < 2:  # the first step warms caches
        time.sleep(0.5)
    switch.turn(number % 2 == 0)
    before = len(metric_records(run))
    time.sleep(seconds)
    steps = [record["time/step"] for record in metric_records(run)[before + 1 :]]
    if not steps:
        raise SystemExit("no step in a block: make --seconds longer")
    state = "down" if number % 2 else "up"
    median = statistics.median(steps)
    print(f"{state:<4}  {len(steps):3d} steps, median {median:.3f} s", flush=True)
    return median


def report(blocks: list[float]) -> None:
    """Each down block against the up blocks beside it."""
    changes = []
    for number in range(1, len(blocks), 2):
        beside = [blocks[number - 1], *blocks[number + 1 : number + 2]]
        changes.append(blocks[number] / statistics.mean(beside) - 1)
    one = mean_interval(changes)
    up, down = (statistics.median(blocks[start::2]) for start in (0, 1))
    print(f"up {up:.3f} s, down {down:.3f} s")
    print(f"down against up: {one.mean:+.1%} (95 % interval {one.low:+.1%} to {one.high:+.1%})")


def prepared(folder: Path, uri: str) -> RunDirectory:
    run = RunDirectory(folder)
    config = resolve(RECIPE, [*SETTINGS, f"tracking.mlflow_uri={uri}"])
    write_stage_configs(config, run)
    prepare(config.data, run.data)
    return run


def server_command(port: int, folder: Path) -> list[str]:
    """A real server with its store in `folder`."""
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    return [*command, *store, "--artifacts-destination", str(folder / "artifacts")]


def wait_for(url: str, patience_seconds: float = 300.0) -> None:
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
