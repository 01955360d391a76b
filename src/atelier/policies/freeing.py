"""Memory of models that are not needed any more."""

from __future__ import annotations

import gc

import torch


def give_back(device: torch.device) -> None:
    """Free what nobody refers to any more, the device's memory too."""
    gc.collect()  # modules refer to themselves: without it they stay until some later time
    if device.type == "cuda":
        torch.cuda.empty_cache()
