"""How long the phases of training steps take by the device's own clock, and decoding within them.

A host that only launches work is ahead of its GPU: by its clock a rollout is over while images are
still made, and the rest of it counts as what comes next. Marks in the GPU's stream are passed when
the work before them is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from atelier.policies.grey_levels import GreyLevels
from atelier.policies.sd3.decoder import ImageDecoder
from atelier.training.measures import Stopwatch

DECODE = "decode"

Mark = Callable[[], float]
"""A moment; once the device has passed it, seconds of its clock."""


class Marked(NamedTuple):
    """Once in a phase."""

    phase: str
    start: Mark
    end: Mark


class DeviceTime:
    """`around` of a trainer.

    Attributes:
        steps: of each so far, phase -> seconds; `decode` is a part of the others.
    """

    def __init__(self, device: torch.device) -> None:
        self.steps: list[Mapping[str, float]] = []
        self._mark = _gpu_marks() if device.type == "cuda" else _host_mark

    @contextmanager
    def __call__(self, watch: Stopwatch) -> Iterator[None]:
        marked: list[Marked] = []

        @contextmanager
        def within(phase: str) -> Iterator[None]:
            start = self._mark()
            yield
            marked.append(Marked(phase, start, self._mark()))

        watch.inside = within
        with _decoding(within):
            yield
        self.steps.append(_seconds(marked))


def _seconds(marked: list[Marked]) -> Mapping[str, float]:
    totals: dict[str, float] = {}
    for one in marked:
        totals[one.phase] = totals.get(one.phase, 0.0) + one.end() - one.start()
    return totals


def _host_mark() -> Mark:
    now = time.perf_counter()
    return lambda: now


def _gpu_marks() -> Callable[[], Mark]:
    first = _event()

    def mark() -> Mark:
        event = _event()

        def seconds() -> float:
            event.synchronize()
            return first.elapsed_time(event) / 1e3

        return seconds

    return mark


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@contextmanager
def _decoding(within: Callable[[str], AbstractContextManager[None]]) -> Iterator[None]:
    """Images are made of latents inside of `within`."""
    plain = ImageDecoder.decode

    def decode(self: ImageDecoder, latents: Tensor) -> GreyLevels:
        with within(DECODE):
            return plain(self, latents)

    ImageDecoder.decode = decode  # type: ignore[method-assign]
    try:
        yield
    finally:
        ImageDecoder.decode = plain  # type: ignore[method-assign]
