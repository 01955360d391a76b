"""How long a GPU waits during a training step, and in which phase: what a profiler saw of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from atelier.training.measures import Span, Stopwatch

LONGEST = 5  # gaps that are told
BETWEEN = "between phases"
# What a stream waits for is traced like a kernel by some versions, and is no work.
_WAITING = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event")


class Interval(NamedTuple):
    """In seconds of one clock."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start

    def within(self, other: Interval) -> Interval:
        """What they share; of no length where they do not meet."""
        start = min(max(self.start, other.start), other.end)
        return Interval(start, max(start, min(self.end, other.end)))


def union(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """What is covered of a window by any of them: apart from each other, in order."""
    covered: list[Interval] = []
    for one in sorted(each.within(window) for each in intervals):
        if one.length <= 0:
            continue
        if covered and one.start <= covered[-1].end:
            covered[-1] = Interval(covered[-1].start, max(covered[-1].end, one.end))
        else:
            covered.append(one)
    return covered


def idle_share(busy: Iterable[Interval], window: Interval) -> float:
    """1 - busy / wall, in [0, 1]."""
    return 1 - sum(one.length for one in union(busy, window)) / window.length


def gaps(busy: Iterable[Interval], window: Interval) -> list[Interval]:
    """What is not covered of a window, the longest first."""
    ends = Interval(window.start, window.start), Interval(window.end, window.end)
    edges = [ends[0], *union(busy, window), ends[1]]
    between = [Interval(before.end, after.start) for before, after in pairwise(edges)]
    return sorted((one for one in between if one.length > 0), key=lambda one: -one.length)


def phase_of(gap: Interval, spans: Sequence[Span]) -> str:
    """The phase that most of a gap lies in."""
    shares = {BETWEEN: gap.length}
    for one in spans:
        inside = gap.within(Interval(one.start, one.end)).length
        shares[one.phase] = shares.get(one.phase, 0.0) + inside
        shares[BETWEEN] -= inside
    return max(shares, key=lambda phase: shares[phase])


def waiting(busy: Iterable[Interval], window: Interval, spans: Sequence[Span]) -> dict[str, Any]:
    """`seconds` of the window, its share of `idle`, `phases` likewise, and the longest `gaps` with
    the phase of each."""
    phases: dict[str, list[Interval]] = {}
    for one in spans:
        phases.setdefault(one.phase, []).append(Interval(one.start, one.end))
    busy, idle = union(busy, window), {}  # once: there are many hundred thousand
    for phase, parts in phases.items():
        work = sum(one.length for part in parts for one in union(busy, part))
        idle[phase] = 1 - work / sum(part.length for part in parts)
    longest = gaps(busy, window)[:LONGEST]
    return {
        "seconds": window.length,
        "idle": idle_share(busy, window),
        "phases": idle,
        "gaps": [{"seconds": one.length, "phase": phase_of(one, spans)} for one in longest],
    }


@dataclass
class StepProfiler:
    """`around` of a trainer: profiles one of its steps.

    Attributes:
        step: which of them, from 1.
        found: what `waiting` says of it, once it is over.

    Raises:
        RuntimeError: nothing of the GPU was recorded.
    """

    step: int
    found: dict[str, Any] | None = None
    _begun: int = 0

    @contextmanager
    def __call__(self, watch: Stopwatch) -> Iterator[None]:
        self._begun += 1
        if self._begun != self.step:
            yield
            return
        # Not what the CPU does: to note each operation would slow down a host that is waited for.
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            torch.cuda.synchronize()
            start = time.perf_counter()
            yield
            torch.cuda.synchronize()
            window = Interval(start, time.perf_counter())
        busy = worked(profiler, DeviceType.CUDA)
        if not busy:  # which would pass for a GPU that only waits
            raise RuntimeError(
                "the profiler saw nothing of the GPU: it needs CUPTI, and that no other profiler "
                "runs; leave out --idle"
            )
        self.found = waiting(busy, window, watch.spans)


class Recorded(NamedTuple):
    """What a profiler noted, by the clock of time.perf_counter."""

    name: str
    device: DeviceType
    is_annotation: bool
    when: Interval


def recorded(profiler: profile) -> list[Recorded]:
    """All events as they were recorded: profiler.events() makes Python objects of the many hundred
    thousand, by a clock that begins with the trace."""
    begun = time.time_ns() - time.perf_counter_ns()  # recorded is the time of day
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None  # it is over
    return [
        Recorded(
            one.name(),
            one.device_type(),
            one.is_user_annotation(),
            Interval(
                (one.start_ns() - begun) / 1e9, (one.start_ns() + one.duration_ns() - begun) / 1e9
            ),
        )
        for one in results.events()
    ]


def is_work(event: Recorded, device: DeviceType) -> bool:
    """Whether a device computed or copied."""
    is_own = event.device == device and not event.is_annotation
    return is_own and not event.name.startswith(_WAITING)


def worked(profiler: profile, device: DeviceType) -> list[Interval]:
    """When a device computed or copied."""
    return [one.when for one in recorded(profiler) if is_work(one, device)]
