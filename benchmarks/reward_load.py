"""What a reward service does under load: OCR of scene words, 64 x 64, in a real process.

    python benchmarks/reward_load.py throughput [--detect --batch 2] [--rounds 30]
    python benchmarks/reward_load.py latency [--seconds 30]
    python benchmarks/reward_load.py soak [--minutes 10]

throughput: images a second by the engine in this process and by a service, with as many workers, in
turns, with the CPU time of all processes, which other work on the machine changes less. latency: of
requests of 4 images by 1, 8 and 64 clients at once, and how many were shed; a client that is shed
waits as long as it is asked to. soak: 8 clients all the time; resident memory of the service,
sampled, and its slope after the first minute. Every score is compared with the engine's own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import psutil

from atelier.config.sections.rewards import RewardsConfig
from atelier.data.render import render
from atelier.data.scenes import sample_scene
from atelier.processes.supervised import SupervisedProcess
from atelier.rewards import RewardSet, ScoreBatch, build
from atelier.rewards.service.pictures import to_items
from atelier.rewards.service.protocol import ScoreRequest

SAMPLE_SECONDS = 5.0
WARM_UP_SECONDS = 60.0


def words(count: int, seed: int) -> ScoreBatch:
    """Scene words as prompts have them."""
    rng = random.Random(seed)
    scenes = [sample_scene(rng, "word") for _ in range(count)]
    targets = [scene.word.text for scene in scenes if scene.word is not None]
    return ScoreBatch(
        [render(scene, rng) for scene in scenes],
        [f'the word "{target}"' for target in targets],
        [{"target": target} for target in targets],
        list(range(count)),
    )


@contextmanager
def served(section: dict) -> Iterator[tuple[str, psutil.Process]]:
    """URL and process of a service, ready."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rewards.yaml").write_text(json.dumps({"rewards": {"ocr": section}}))
        port_file = folder / "port"
        command = [sys.executable, "-m", "atelier.rewards.service", "--port", "0"]
        command += ["--config", str(folder / "rewards.yaml"), "--port-file", str(port_file)]
        with SupervisedProcess(command, folder / "log", os.environ, Path.cwd()):
            while not port_file.exists():
                time.sleep(0.1)
            url = f"http://127.0.0.1:{int(port_file.read_text())}"
            while httpx.get(f"{url}/readyz", trust_env=False).status_code != 200:
                time.sleep(0.2)
            (found,) = [
                psutil.Process(one.pid)
                for one in psutil.Process().children(recursive=True)
                if str(port_file) in one.cmdline() and not one.children()
            ]
            yield url, found


# Throughput --------------------------------------------------------------------------------------


@dataclass
class Way:
    """A way to score; what a round took by the clock and of all its processes' CPUs."""

    rewards: RewardSet
    processes: list[psutil.Process]
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def round(self, batches: list[ScoreBatch]) -> list[float]:
        """The scores of the batches; notes images a second and CPU milliseconds an image."""
        images = sum(map(len, batches))
        begun, cpu = time.perf_counter(), self._cpu_seconds()
        table = self.rewards.collect([self.rewards.submit(batch) for batch in batches])
        self.rates.append(images / (time.perf_counter() - begun))
        self.cpu.append((self._cpu_seconds() - cpu) / images * 1000)
        assert table.valid.all()
        return table.values["ocr"].tolist()

    def _cpu_seconds(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self.processes)


def throughput(detect: bool, workers: int, rounds: int, size: int) -> None:
    section = {"detect": detect, "workers": workers}
    batches = [words(size, seed) for seed in range(4 if detect else 12)]
    with served(section) as (url, process):
        remote = section | {"placement": "remote", "urls": [url]}
        with (
            build(RewardsConfig.model_validate({"ocr": section})) as here,
            build(RewardsConfig.model_validate({"ocr": remote})) as there,
        ):
            own = psutil.Process()
            ways = [Way(here, [own]), Way(there, [own, process])]
            before = os.getloadavg()[0]
            for _ in range(rounds + 1):  # in the first one engines are made, connections opened
                scores = [way.round(batches) for way in ways]
                assert scores[0] == scores[1]
                ways.reverse()
                print(".", end="", file=sys.stderr, flush=True)
    direct, service = sorted(ways, key=lambda way: len(way.processes))
    ratios = [b / a for a, b in zip(direct.rates[1:], service.rates[1:], strict=True)]
    print(
        f"\n{workers} workers, detect: {detect}, {rounds} rounds, load average {before:.1f} before"
    )
    for name, way in (("engine", direct), ("service", service)):
        rate, cpu = statistics.median(way.rates[1:]), statistics.median(way.cpu[1:])
        print(f"{name:<8} {rate:6.1f} images/s   {cpu:6.2f} CPU ms an image")
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"ratio of a round: median {median:.3f}, middle half {low:.3f} to {high:.3f}")


# Latency -----------------------------------------------------------------------------------------


@dataclass
class Client:
    """Asks again and again until `until`; keeps what it saw."""

    url: str
    batch: ScoreBatch
    expected: list[float]
    until: float
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def run(self) -> None:
        body = ScoreRequest(items=to_items(self.batch)).model_dump_json().encode()
        headers = {"Content-Type": "application/json"}
        with httpx.Client(timeout=600, trust_env=False) as client:
            while time.monotonic() < self.until:
                begun = time.perf_counter()
                answer = client.post(f"{self.url}/score", content=body, headers=headers)
                self.statuses[answer.status_code] += 1
                if answer.status_code == 503:
                    time.sleep(float(answer.headers["Retry-After"]))
                    continue
                self.seconds.append(time.perf_counter() - begun)
                results = answer.json()["rewards"]["ocr"]["results"]
                assert [one["score"] for one in results] == self.expected


def clients(url: str, count: int, seconds: float) -> list[Client]:
    """That many at once, for so long; with what they saw."""
    batches = [words(4, seed) for seed in range(8)]
    with build(RewardsConfig.model_validate({"ocr": {"detect": False}})) as here:
        scorer = here.rewards["ocr"].scorer
        known = [(batch, list(scorer.score(batch).values)) for batch in batches]
    until = time.monotonic() + seconds
    made = [Client(url, *known[index % 8], until) for index in range(count)]
    threads = [threading.Thread(target=one.run) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def latency(workers: int, seconds: float) -> None:
    print("| clients | requests/s | p50 | p95 | p99 (ms) | shed | load average |")
    print("|---|---|---|---|---|---|---|")
    with served({"detect": False, "workers": workers}) as (url, _):
        for count in (1, 8, 64):
            made = clients(url, count, seconds)
            taken = [one for client in made for one in client.seconds]
            statuses = sum((client.statuses for client in made), Counter())
            assert set(statuses) <= {200, 503}
            middle, high, highest = np.percentile(taken, [50, 95, 99]) * 1000
            asked = sum(statuses.values())
            print(
                f"| {count} | {len(taken) / seconds:.1f} | {middle:.0f} | {high:.0f} | "
                f"{highest:.0f} | {statuses[503]} of {asked} | {os.getloadavg()[0]:.1f} |",
                flush=True,
            )


# Soak --------------------------------------------------------------------------------------------


def soak(workers: int, minutes: float) -> None:
    with served({"detect": False, "workers": workers}) as (url, process):
        begun = time.monotonic()
        samples: list[tuple[float, float]] = []
        working = threading.Thread(target=clients, args=(url, 8, minutes * 60))
        working.start()
        while working.is_alive():
            resident = process.memory_info().rss / 2**20
            samples.append((time.monotonic() - begun, resident))
            working.join(SAMPLE_SECONDS)
        page = httpx.get(f"{url}/metrics", trust_env=False).text
    warm = np.array([one for one in samples if one[0] > min(WARM_UP_SECONDS, minutes * 20)])
    slope = np.polyfit(warm[:, 0] / 60, warm[:, 1], 1)[0]
    images = next(line for line in page.splitlines() if line.startswith("atelier_reward_images_to"))
    print(f"{minutes:g} minutes, {images.split()[-1]} images, {len(warm)} samples when warm")
    print(
        f"resident MiB: first {warm[0, 1]:.1f}, last {warm[-1, 1]:.1f}, most {warm[:, 1].max():.1f}"
    )
    print(f"slope {slope:+.3f} MiB a minute; load average {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["throughput", "latency", "soak"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--batch", type=int, default=16, help="images of a request; 2 is for --detect"
    )
    parser.add_argument("--detect", action="store_true", help="find text boxes first")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each number of clients")
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    if options.what == "throughput":
        throughput(options.detect, options.workers, options.rounds, options.batch)
    elif options.what == "latency":
        latency(options.workers, options.seconds)
    else:
        soak(options.workers, options.minutes)


if __name__ == "__main__":
    main()
