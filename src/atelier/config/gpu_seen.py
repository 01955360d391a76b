"""Whether this machine shows a GPU, told from its device files: at once, and without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from atelier.config.schema import RunConfig
from atelier.errors import PlanError

_DEVICES = Path("/dev")
# NVIDIA's, those of its small boards, of Linux below Windows, and AMD's.
_FILES = ("nvidia[0-9]*", "nvmap", "dxg", "kfd")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_HIDDEN = ("", "-1")  # what hides them all


def gpu_is_seen() -> bool:
    """Whether a process that is started here would find one."""
    if os.environ.get(_VISIBLE, "0").strip() in _HIDDEN:
        return False
    return any(True for pattern in _FILES for _ in _DEVICES.glob(pattern))


def require_gpu(config: RunConfig) -> None:
    """Before anything starts for a run on this machine.

    Raises:
        PlanError: it is to be on GPUs, and none is seen.
    """
    if config.launch.device == "cuda" and not gpu_is_seen():
        raise PlanError(
            "launch.device: cuda, but no GPU is seen on this machine; start it where there is one, "
            "or, for a small model, set launch.device=auto"
        )


def gpu_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and warning where a run would be refused on this machine, for want of any GPU."""
    if config.launch.device == "cuda" and not gpu_is_seen():
        yield (
            "launch.device",
            "cuda: no GPU is seen on this machine, and a run here is refused: start it where there "
            "is one, or, for a small model, set launch.device=auto",
        )
