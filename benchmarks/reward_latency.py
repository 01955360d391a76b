"""What does a slow reward cost? Seconds a step by the latency of its service.

    python benchmarks/reward_latency.py --latencies 0 0.5 2 8 --steps 6

The demo's model learns from OCR in a real service, behind a proxy that holds back the answer to
each micro-batch; synchronously, and one step off (train.one_step_off). Requests wait side by side,
as they do at a judge that batches. The last column is the equivalence: rewards of every step must
be those of the run without latency, to the digit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
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


def trained(folder: Path, url: str, settings: Sequence[str], ahead: bool) -> list[dict[str, Any]]:
    """Metrics of every step of a run."""
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
    command = [sys.executable, "-m", "atelier.training", "--run", str(run.root)]
    command += ["--config", str(run.config("train"))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return metric_records(run)


def seconds_of(records: Sequence[dict[str, Any]]) -> float:
    """Median of a step; not the first, which warms caches (and samples twice one step off), nor
    the last (which samples nothing ahead)."""
    return statistics.median(one["time/step"] for one in records[1:-1])


def rewards_of(records: Sequence[dict[str, Any]]) -> list[float]:
    return [one["reward/mean"] for one in records]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latencies", type=float, nargs="+", default=[0, 0.5, 2, 8])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    settings = [f"train.steps={options.steps}", *options.overrides]
    folder = Path(tempfile.mkdtemp(prefix="reward-latency-"))
    print(f"{'way':<14}{'latency s':>10}{'s a step':>10}{'to none':>9}  rewards equal")
    with slow_service(folder) as url:
        first: dict[str, tuple[float, list[float]]] = {}
        for latency in options.latencies:
            for way, ahead in WAYS.items():
                Proxy.latency = latency
                name = f"{way.replace(' ', '-')}-{latency:g}"
                records = trained(folder / name, url, settings, ahead)
                seconds, rewards = seconds_of(records), rewards_of(records)
                base, expected = first.setdefault(way, (seconds, rewards))
                line = f"{way:<14}{latency:>10g}{seconds:>10.2f}{seconds / base:>9.3f}"
                print(f"{line}  {'yes' if rewards == expected else 'NO'}", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
