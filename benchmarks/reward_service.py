"""What a score costs through a service, compared with making it here.

    python benchmarks/reward_service.py [--batches 40] [--size 16]

Scores the same micro-batches of noise in this process and through one managed service (its own
process, loopback, bearer token), one batch at a time, in turns. Wall-clock is the median over the
batches, CPU time is of this process and the service together; both in milliseconds an image. The
difference is PNG, base64, JSON and HTTP, both ways.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from atelier.stages.reward_services import RewardServices
from PIL import Image

from atelier.config.resolve import resolve
from atelier.config.sections.rewards import RewardsConfig
from atelier.rewards import RewardSet, ScoreBatch, build
from atelier.tracking.run_directory import RunDirectory

SIDES = (64, 512)
REWARDS = ("jpeg_compressibility", "ocr")


@dataclass
class Way:
    """One way to score, and what it took."""

    rewards: RewardSet
    processes: list[psutil.Process]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def score(self, batch: ScoreBatch) -> None:
        wall, cpu = time.perf_counter(), self._cpu_seconds()
        assert self.rewards.collect([self.rewards.submit(batch)]).valid.all()
        self.wall.append((time.perf_counter() - wall) / len(batch) * 1000)
        self.cpu.append((self._cpu_seconds() - cpu) / len(batch) * 1000)

    def _cpu_seconds(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self.processes)


def noise(count: int, side: int) -> ScoreBatch:
    pixels = np.random.default_rng(side).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    images = [Image.fromarray(one) for one in pixels]
    return ScoreBatch(images, ["a word"] * count, [{"target": "ABC"}] * count, [0] * count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--size", type=int, default=16, help="images in a batch")
    options = parser.parse_args()
    print(f"{'':<27}     wall-clock              CPU           (ms an image)")
    print(f"{'reward':<22} {'side':>4}     here  service     here  service")
    for name in REWARDS:
        own = [] if name == "ocr" else ["rewards.ocr=null"]
        config = resolve("tiny/base", [*own, f"rewards.{name}.placement=managed"])
        section = getattr(config.rewards, name).model_dump() | {"placement": "in_process"}
        run = RunDirectory(Path(tempfile.mkdtemp()))
        with RewardServices(run, config) as services:
            os.environ.update(services.environment)
            (service,) = json.loads((run.train / "reward_services.json").read_text())[name]
            me, other = psutil.Process(), psutil.Process(service["pid"])
            for side in SIDES:
                batch = noise(options.size, side)
                with (
                    build(RewardsConfig.model_validate({name: section})) as here,
                    build(config.rewards, managed=services.urls) as there,
                ):
                    ways = [Way(here, [me]), Way(there, [me, other])]
                    for _ in range(options.batches):
                        for way in ways:
                            way.score(batch)
                wall = [statistics.median(way.wall[1:]) for way in ways]
                cpu = [statistics.mean(way.cpu[1:]) for way in ways]
                numbers = " ".join(f"{value:8.2f}" for value in (*wall, *cpu))
                print(f"{name:<22} {side:>4} {numbers}", flush=True)


if __name__ == "__main__":
    main()
