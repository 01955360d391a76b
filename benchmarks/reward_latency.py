"""What does a slow reward cost? Seconds a step by the latency of its service.

    python benchmarks/reward_latency.py --latencies 0 0.5 2 8 --rounds 3

The demo's model learns from OCR in a real service, behind a proxy that holds back the answer to
each micro-batch; synchronously, and one step off (train.one_step_off). Requests wait side by side,
as they do at a judge that batches. Latencies take turns within one run, so that what else the
machine does leaves the ratios alone. The equivalence: rewards of every step must be those of a run
without latency, to the digit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from atelier.config.resolve import resolve, write_stage_configs
from atelier.data.prepare import prepare
from atelier.processes.supervised import SupervisedProcess
from atelier.report.run_data import metric_records
from atelier.tracking.run_directory import RunDirectory

RECIPE = "tiny/flow-grpo-fast"
WAYS = {"synchronous": False, "one step off": True}


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to the service, and answers to /score `latency` seconds later."""

    behind = ""
    latency = 0.0

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._pass_on(body, type(self).latency if self.path == "/score" else 0.0)

    def _pass_on(self, body: bytes, latency: float = 0.0) -> None:
        begun = time.monotonic()
        answer = httpx.request(
            self.command,
            self.behind + self.path,
            content=body,
            headers={"Content-Type": "application/json"},
            timeout=600,
            trust_env=False,
        )
        time.sleep(max(0.0, latency - (time.monotonic() - begun)))
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def slow_service(folder: Path):
    """URL of the proxy before a real OCR service."""
    (folder / "rewards.yaml").write_text("rewards: {ocr: {detect: false}}\n")
    port_file = folder / "port"
    service = [sys.executable, "-m", "atelier.rewards.service", "--port", "0"]
    service += ["--config", str(folder / "rewards.yaml"), "--port-file", str(port_file)]
    with SupervisedProcess(service, folder / "service.log", os.environ, Path.cwd()):
        while not port_file.exists():
            time.sleep(0.1)
        Proxy.behind = f"http://127.0.0.1:{int(port_file.read_text())}"
        while httpx.get(f"{Proxy.behind}/readyz", trust_env=False).status_code != 200:
            time.sleep(0.2)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def prepared(folder: Path, url: str, settings: Sequence[str], ahead: bool) -> RunDirectory:
    """A run that learns from the service at `url`, ready to be trained."""
    run = RunDirectory(folder)
    own = [
        f"rewards.ocr={{detect: false, placement: remote, urls: ['{url}'], workers: 32}}",
        f"train.one_step_off={str(ahead).lower()}",
        "train.evaluate_every=0",
        "launch.processes=1",
    ]
    config = resolve(RECIPE, [*own, *settings])
    write_stage_configs(config, run)
    prepare(config.data, run.data)
    return run


def trained(run: RunDirectory, order: Sequence[float]) -> list[dict[str, Any]]:
    """Metrics of every step of a run; answers to its n-th step come `order[n]` seconds late, and
    one step off, answers to what that step samples for the next."""
    command = [sys.executable, "-m", "atelier.training", "--run", str(run.root)]
    command += ["--config", str(run.config("train"))]
    with SupervisedProcess(command, run.root / "trainer.log", os.environ, Path.cwd()) as trainer:
        while trainer.poll() is None:
            done = len(metric_records(run))
            Proxy.latency = order[min(done, len(order) - 1)]
            time.sleep(0.1)
    if trainer.poll() != 0:
        raise SystemExit((run.root / "trainer.log").read_text()[-2000:])
    return metric_records(run)


def latency_of_steps(latencies: Sequence[float], block: int, rounds: int) -> list[float]:
    """Each latency for `block` steps, in turn, `rounds` times; one step before that warms caches,
    and one behind, which one step off samples nothing ahead."""
    turn = [latency for latency in latencies for _ in range(block)]
    return [turn[0], *turn * rounds, turn[-1]]


def seconds_by_latency(
    records: Sequence[dict[str, Any]], latencies: Sequence[float], block: int, rounds: int
) -> list[dict[float, float]]:
    """Of every round, the mean seconds of a step by latency; without the first step of a block,
    which one step off still waits for answers of the block before."""
    seconds = [one["time/step"] for one in records][1:-1]
    starts = range(0, len(seconds), block)
    blocks = [statistics.mean(seconds[start + 1 : start + block]) for start in starts]
    width = len(latencies)
    return [
        dict(zip(latencies, blocks[width * number : width * (number + 1)], strict=True))
        for number in range(rounds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latencies", type=float, nargs="+", default=[0, 0.5, 2, 8])
    parser.add_argument("--block", type=int, default=3, help="steps in a row with one latency")
    parser.add_argument("--rounds", type=int, default=3, help="times all latencies take turns")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    latencies, shape = options.latencies, (options.block, options.rounds)
    order = latency_of_steps(latencies, *shape)
    settings = [f"train.steps={len(order)}", *options.overrides]
    folder = Path(tempfile.mkdtemp(prefix="reward-latency-"))
    with slow_service(folder) as url:
        for way, ahead in WAYS.items():
            run = prepared(folder / f"late-{ahead}", url, settings, ahead)
            records = trained(run, order)
            # Without latency, and only as far as every latency has been met once.
            short = [*settings, f"train.steps={1 + options.block * len(latencies)}"]
            expected = trained(prepared(folder / f"none-{ahead}", url, short, ahead), [0.0])
            equal = rewards_of(records)[: len(expected)] == rewards_of(expected)
            print(f"{way}: rewards are those of a run without latency: {'yes' if equal else 'NO'}")
            report(seconds_by_latency(records, latencies, *shape))
    shutil.rmtree(folder)


def rewards_of(records: Sequence[dict[str, Any]]) -> list[float]:
    return [one["reward/mean"] for one in records]


def report(rounds: Sequence[dict[float, float]]) -> None:
    """A line for every latency: seconds a step, and against the first latency of its round."""
    print(f"{'latency s':>10}{'s a step':>10}{'to first':>10}  of every round")
    for latency, none in ((one, next(iter(rounds[0]))) for one in rounds[0]):
        ratios = [one[latency] / one[none] for one in rounds]
        mean = statistics.mean(one[latency] for one in rounds)
        every = "  ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"{latency:>10g}{mean:>10.2f}{statistics.mean(ratios):>10.3f}  {every}", flush=True)


if __name__ == "__main__":
    main()
