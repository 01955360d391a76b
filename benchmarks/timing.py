"""How long a phase takes, and how much memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

GIBIBYTE = 2**30


class Meter:
    """Seconds and peak memory of a phase; of memory on a GPU only."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.seconds = 0.0
        self.peak = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        yield
        if self._on_gpu:
            torch.cuda.synchronize()
            self.peak = torch.cuda.max_memory_allocated() / GIBIBYTE
        self.seconds = time.perf_counter() - start


def timed(run: Callable[[], object], meter: Meter, repeats: int) -> tuple[float, float]:
    """Median seconds and peak GiB, after a warm-up."""
    run()
    seconds = []
    for _ in range(repeats):
        with meter():
            run()
        seconds.append(meter.seconds)
    return statistics.median(seconds), meter.peak
