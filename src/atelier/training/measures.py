"""Small accumulators of the loop: weighted means over ranks, seconds by phase, peak memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from atelier.training.distributed import World

REWARD_TIMES = "time/reward/"  # what the machine took, like all of time/: no result


class WeightedMeans:
    """Means of [B, A] metrics under the weights of the loss, which sum to 1 over all ranks. The
    sums stay on the metrics' device until they are asked for."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, metrics: Mapping[str, Tensor], weight: Tensor) -> None:
        """metrics [B, A] each; weight [B, A]."""
        for name, value in metrics.items():
            total = (value.double() * weight.double()).sum()
            self._sums[name] = self._sums.get(name, 0.0) + total

    def over(self, world: World) -> dict[str, float]:
        """Collective: the sums of all ranks, which are the means."""
        values = torch.stack([*self._sums.values()]).tolist() if self._sums else []
        parts = world.gather(dict(zip(self._sums, values, strict=True)))
        return {name: sum(part[name] for part in parts) for name in self._sums}


def peak_memory(world: World, name: str = "memory/peak_gib") -> dict[str, float]:
    """GiB that tensors took since the last call, at most, on the GPU that has most. Collective.

    On a CPU nothing is known. Like a time, it is no result: a resumed run has others.
    """
    if world.device.type != "cuda":
        return {}
    peak = torch.cuda.max_memory_allocated(world.device)
    torch.cuda.reset_peak_memory_stats(world.device)
    return {name: round(max(world.gather(peak)) / 2**30, 3)}


def latencies(seconds: Mapping[str, Sequence[float]], world: World) -> dict[str, float]:
    """Mean and maximum over all ranks' batches of the time from submission to scores. Collective.

    seconds: reward name -> one a batch. A reward that scored none has no entry.
    """
    parts = world.gather({name: list(values) for name, values in seconds.items()})
    result = {}
    for name in seconds:
        known = [value for part in parts for value in part[name]]
        if known:
            result[f"{REWARD_TIMES}{name}/mean"] = round(sum(known) / len(known), 4)
            result[f"{REWARD_TIMES}{name}/max"] = round(max(known), 4)
    return result


class Span(NamedTuple):
    """Once in a phase, from start to end by time.perf_counter."""

    phase: str
    start: float
    end: float


class Stopwatch:
    """Seconds spent in named phases of a step, and in all of it.

    Attributes:
        spans: of the phases so far, in the order of their ends.
        inside: what each phase, by its name, is done inside of: somebody who looks on.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.spans: list[Span] = []
        self.inside: Callable[[str], AbstractContextManager[object]] = nullcontext

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with self.inside(phase):
                yield
        finally:
            self.spans.append(Span(phase, start, time.perf_counter()))

    def restart(self) -> None:
        """Forget all phases, and count a step from now on."""
        self._start = time.perf_counter()
        self.spans.clear()

    def seconds(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for one in self.spans:
            totals[one.phase] = totals.get(one.phase, 0.0) + one.end - one.start
        phases = {f"time/{name}": round(value, 4) for name, value in totals.items()}
        return {**phases, "time/step": round(time.perf_counter() - self._start, 4)}
