"""What a score costs through a service, compared with making it here.

    python benchmarks/reward_service.py [--batches 40] [--size 16]

Scores the same micro-batches of noisy words in this process and through one managed service (its
own process, loopback, bearer token), one batch at a time, in turns; prints wall-clock milliseconds
an image, the median over the batches. The difference is PNG, base64, JSON and HTTP, both ways.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from atelier.config.resolve import resolve
from atelier.rewards import RewardSet, ScoreBatch, build
from atelier.stages.reward_services import RewardServices
from atelier.tracking.run_directory import RunDirectory

SIDES = (64, 512)
REWARDS = ("jpeg_compressibility", "ocr")


def noisy_words(count: int, side: int) -> ScoreBatch:
    """Noise that compresses badly: the worst case for PNG."""
    noise = np.random.default_rng(side)
    pixels = noise.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    images = [Image.fromarray(one) for one in pixels]
    return ScoreBatch(images, ["a word"] * count, [{"target": "ABC"}] * count, [0] * count)


def milliseconds(rewards: RewardSet, batch: ScoreBatch) -> float:
    begun = time.perf_counter()
    table = rewards.collect([rewards.submit(batch)])
    assert table.valid.all()
    return (time.perf_counter() - begun) / len(batch) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--size", type=int, default=16, help="images in a batch")
    options = parser.parse_args()
    print("reward                 side   in process      service   difference   (ms an image)")
    for name in REWARDS:
        other = [f"rewards.{one}=null" for one in ("ocr",) if one != name]
        config = resolve("tiny/base", [*other, f"rewards.{name}.placement=managed"])
        own = config.rewards.model_validate({name: {**_scored(config, name), "urls": []}})
        with (
            tempfile.TemporaryDirectory() as folder,
            RewardServices(RunDirectory(Path(folder)), config) as services,
        ):
            os.environ.update(services.environment)
            with build(own) as here, build(config.rewards, services.urls) as there:
                for side in SIDES:
                    batch = noisy_words(options.size, side)
                    pairs = [
                        (milliseconds(here, batch), milliseconds(there, batch))
                        for _ in range(options.batches)
                    ][1:]
                    first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
                    print(
                        f"{name:<22} {side:>4} {first:>12.2f} {second:>12.2f} "
                        f"{second - first:>12.2f}",
                        flush=True,
                    )


def _scored(config, name: str) -> dict:
    """The reward's section, scored in process."""
    return getattr(config.rewards, name).model_dump() | {"placement": "in_process"}


if __name__ == "__main__":
    main()
