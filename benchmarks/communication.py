"""How long the collectives of a training step's update take, as a profiler saw them on a rank.

A collective is counted from its beginning to its end on this rank, and so with what it waits for
ranks that come later: of NCCL the time of its kernels, of gloo the time that an operation is under
way. What ranks tell each other of metrics counts, too. `exposed` is the part of it in which the
GPU does nothing else; on a CPU that cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from atelier.training.measures import Span, Stopwatch
from benchmarks.idle import Interval, Recorded, is_work, recorded, union

NCCL, GLOO = "nccl", "gloo:"
PHASE = "update"


def communication(
    collectives: Sequence[Interval], others: Sequence[Interval] | None, spans: Iterable[Span]
) -> dict[str, float | None]:
    """`seconds` of the update, the `share` of it in which a collective runs, and the share in which
    nothing else does (`exposed`).

    Args:
        others: when the device does anything else; None where that is not known.
    """
    updates = [Interval(one.start, one.end) for one in spans if one.phase == PHASE]
    seconds = sum(one.length for one in updates)
    share, exposed = _covered(collectives, updates) / seconds, None
    if others is not None:
        both = _covered([*collectives, *others], updates)
        exposed = (both - _covered(others, updates)) / seconds
    return {"seconds": seconds, "share": share, "exposed": exposed}


def _covered(intervals: Sequence[Interval], windows: Iterable[Interval]) -> float:
    return sum(one.length for window in windows for one in union(intervals, window))


@contextmanager
def profiled(watch: Stopwatch) -> Iterator[dict[str, Any]]:
    """What is yielded has `communication` of the step in it, once that is over.

    Raises:
        RuntimeError: nothing was recorded.
    """
    on_gpu = torch.cuda.is_available()
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    found: dict[str, Any] = {}
    with profile(activities=[activity]) as profiler:
        yield found
        if on_gpu:
            torch.cuda.synchronize()
    events = recorded(profiler)
    if not events:  # which would pass for ranks that tell each other nothing
        raise RuntimeError("the profiler recorded nothing: it needs CUPTI, and to be the only one")
    found |= of_gpu(events, watch) if on_gpu else of_cpu(events, watch)


def of_gpu(events: Sequence[Recorded], watch: Stopwatch) -> dict[str, float | None]:
    kernels = [one for one in events if is_work(one, DeviceType.CUDA)]
    collectives = [one.when for one in kernels if NCCL in one.name.lower()]
    others = [one.when for one in kernels if NCCL not in one.name.lower()]
    return communication(collectives, others, watch.spans)


def of_cpu(events: Sequence[Recorded], watch: Stopwatch) -> dict[str, float | None]:
    collectives = [one.when for one in events if one.name.startswith(GLOO)]
    return communication(collectives, None, watch.spans)
