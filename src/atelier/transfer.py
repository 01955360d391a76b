"""Tensors between main memory and a device, without either side waiting for the other.

A GPU works through what it is told in order, and the host runs ahead of it as long as it asks for
nothing back. A copy from ordinary memory ends that: it waits for all that was told before. One from
or to pinned memory takes its turn. On a CPU nothing has to be copied.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """The same values there: the tensor itself where it is there already."""
    if device.type != "cuda" or value.device.type != "cpu":
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


class Arriving:
    """A tensor on its way to main memory, behind what the device was told before. Where it is there
    already it is the tensor itself. Any thread may wait for it."""

    def __init__(self, value: Tensor) -> None:
        self._value = value
        self._arrival: torch.cuda.Event | None = None
        if value.device.type == "cuda":
            self._value = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._value.copy_(value, non_blocking=True)
            self._arrival = torch.cuda.Event(blocking=True)  # who waits leaves its core to others
            self._arrival.record(torch.cuda.current_stream(value.device))

    def wait(self) -> Tensor:
        """The tensor, in main memory."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._value
