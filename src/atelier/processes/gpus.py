"""Which GPUs of this machine a process computes on: none that another run has claimed.

Runs know nothing of each other: they may come from two Prefect servers, from `atelier run` or from
`dvc repro`. So a GPU is a lock file, held until its process ends, and CUDA_VISIBLE_DEVICES names
the ones that were free. The locks are the checkout's; what other programs use is not known here.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from atelier.config.paths import repository_root
from atelier.errors import PlanError

VISIBLE = "CUDA_VISIBLE_DEVICES"
REMIND_EVERY_SECONDS = 300.0

logger = logging.getLogger(__name__)

# File descriptors, open as long as the process lives: CUDA cannot move to another GPU once started.
_claimed: list[int] = []


def visible_gpus() -> list[str]:
    """The GPUs that CUDA may use, as CUDA_VISIBLE_DEVICES names them; empty without any.

    Counted without starting CUDA in this process, which would fix its choice.
    """
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return (named or [str(index) for index in range(count)])[:count]


def claim_gpus(count: int, folder: Path | None = None) -> list[str]:
    """Claim `count` GPUs for this process and its children, for as long as it lives.

    Waits while others hold them; all or none are taken. Once claimed, the same ones are kept.
    Nothing happens on a machine without GPUs.

    Args:
        folder: where the locks lie; default: .atelier/gpus of the repository.

    Returns:
        What CUDA_VISIBLE_DEVICES is set to.

    Raises:
        PlanError: this machine shows fewer GPUs.
    """
    gpus = visible_gpus()
    if not gpus or len(_claimed) >= count:
        return gpus
    if count > len(gpus):
        raise PlanError(
            f"launch.processes: {count} GPUs are wanted, one a rank and those of managed servers "
            f"(server.gpus), and {len(gpus)} are visible; lower launch.processes, let servers "
            "share (server.share_gpus) or set launch.device=cpu"
        )
    folder = folder or repository_root() / ".atelier" / "gpus"
    folder.mkdir(parents=True, exist_ok=True)
    said = None
    while (taken := _take(gpus, count, folder)) is None:
        if said is None or time.monotonic() - said > REMIND_EVERY_SECONDS:
            said = time.monotonic()
            logger.info("waiting for %d of %d GPUs: other runs have the rest", count, len(gpus))
        time.sleep(random.uniform(0.5, 1.5))  # two that want many must not collide for ever
    _claimed.extend(taken.values())
    os.environ[VISIBLE] = ",".join(taken)
    return list(taken)


def _take(gpus: Sequence[str], count: int, folder: Path) -> dict[str, int] | None:
    """Lock the first `count` free GPUs, or none at all."""
    taken: dict[str, int] = {}
    for gpu in gpus:
        if len(taken) == count:
            break
        lock = os.open(folder / f"{gpu.replace('/', '-')}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        taken[gpu] = lock
    if len(taken) == count:
        return taken
    for lock in taken.values():
        os.close(lock)
    return None
