"""Standard normal noise of keys, drawn by threads and, where it is said what comes, ahead.

Every key has a CPU generator of its own: on every device, for every world size and however many
threads draw, the numbers are the same. A generator takes turns with nobody, and draws without
Python's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from atelier.transfer import to_device


class Request(NamedTuple):
    """`draws` tensors of each key."""

    keys: tuple[int, ...]
    draws: int = 1


@dataclass(frozen=True)
class _Drawing:
    """Rows that are being filled."""

    rows: Tensor
    filling: Sequence[Future[None]]

    def wait(self) -> Tensor:
        for one in self.filling:
            one.result()
        return self.rows


class Noise:
    """Tensors [B, draws, *shape], float32, on `device`.

    Args:
        threads: that draw; 1: only who asks does.
        ahead: how many requests that are expected are drawn before they are made.
    """

    def __init__(
        self, shape: Sequence[int], device: torch.device, threads: int = 1, ahead: int = 0
    ) -> None:
        self._shape = tuple(shape)
        self._device = device
        self._ahead = ahead
        self._pool = ThreadPoolExecutor(threads, "noise") if threads > 1 or ahead else None
        self._expected: deque[Request] = deque()
        self._drawing: dict[Request, _Drawing] = {}

    def expect(self, requests: Sequence[Request]) -> None:
        """What is asked for next, in this order; what else was expected is no more."""
        self._drawing = {one: self._drawing[one] for one in requests if one in self._drawing}
        self._expected = deque(one for one in requests if one not in self._drawing)
        self._draw_ahead()

    def __call__(self, request: Request) -> Tensor:
        drawing = self._drawing.pop(request, None) or self._begin(request)
        self._draw_ahead()
        return to_device(drawing.wait(), self._device)

    def close(self) -> None:
        """End the threads; what they draw ahead is not asked for any more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _draw_ahead(self) -> None:
        while self._expected and len(self._drawing) < self._ahead:
            request = self._expected.popleft()
            self._drawing[request] = self._begin(request)

    def _begin(self, request: Request) -> _Drawing:
        rows = torch.empty(
            (len(request.keys), request.draws, *self._shape),
            pin_memory=self._device.type == "cuda",
        )
        pairs = zip(rows, request.keys, strict=True)
        if self._pool is not None:
            return _Drawing(rows, [self._pool.submit(fill, row, key) for row, key in pairs])
        for row, key in pairs:
            fill(row, key)
        return _Drawing(rows, ())


def fill(row: Tensor, key: int) -> None:
    """Draw a row, in place."""
    torch.randn(row.shape, generator=torch.Generator().manual_seed(key), out=row)
