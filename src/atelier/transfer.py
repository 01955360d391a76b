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
